"""What is asked of the API server for one resource: as much as it understands."""

from nodeproxy.kube.resources import Resource
from nodeproxy.kube.transport import StatusError

_PAGE = "500"  # objects
_NOT_UNDERSTOOD = {400, 422}


class Demands:
    """Query parameters of lists and watches.

    Args:
        resource: what they are for.

    Attributes:
        streams_lists: whether initial objects are asked for as events of a watch (KEP-3157).
    """

    def __init__(self, resource: Resource) -> None:
        self.streams_lists = True
        self._selectors = resource.selectors
        self._wishes = resource.wishes

    def page(self, rest: str, *, limit: bool) -> dict[str, str]:
        """For a list of the most recent state.

        Args:
            rest: the page before has said so; empty for the first.
            limit: whether it may come in pages.
        """
        query = self._selection()
        if limit:
            query["limit"] = _PAGE
        if rest:
            query["continue"] = rest
        return query

    def watch(self, version: str, seconds: float) -> dict[str, str]:
        """For a watch from a resource version on, which is to end after some seconds."""
        return self._selection() | self._stream(seconds) | {"resourceVersion": version}

    def streamed_list(self, seconds: float) -> dict[str, str]:
        """For a watch that begins with what is there, in its most recent state."""
        initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        return self._selection() | self._stream(seconds) | initial

    def concede(self, error: StatusError, *, listing: bool) -> bool:
        """Ask for less next time if the API server does not understand what it was asked for.

        Args:
            error: what it said.
            listing: whether it was asked for a list.

        Returns:
            whether there was something to do without.
        """
        if error.status not in _NOT_UNDERSTOOD:
            return False
        about_fields = "field label" in error.message or "fieldSelector" in error.message
        if self._wishes and (about_fields or not self.streams_lists or not listing):
            self._wishes = {}
        elif self.streams_lists and listing and not about_fields:
            self.streams_lists = False
        else:
            return False
        return True

    def _selection(self) -> dict[str, str]:
        return {**self._selectors, **self._wishes}

    @staticmethod
    def _stream(seconds: float) -> dict[str, str]:
        return {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(max(1, round(seconds)))}
