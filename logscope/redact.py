r"""Takes out of text what should not be shared: paths, addresses, host names, prompts, identifiers.

This module is responsible for replacing private text by names that stay the same for the same text (``host-1`` is
always the same host), so that a redacted log still tells what belongs together. It must not read files, and knows no
report: it works on text and on plain values that hold text.

What each kind takes out:

paths    absolute and home paths, and whatever stands behind a key that ends in path, dir, file or folder. What
         follows ``site-packages/`` is public and stays: ``/path-1/site-packages/sglang/srt/...``.
ips      IPv4 and IPv6 addresses; loopback and unspecified ones say nothing and stay.
hosts    names in addresses (``http://name``, ``user@name``), behind keys that end in host, hostname, node or addr, in
         NCCL, container and pod prefixes, and any name with a usual ending (``.internal``, ``.com`` ...); a name once
         seen so is replaced wherever it stands afterwards. User names before an ``@`` go too.
prompts  quoted text behind text, prompt, content, messages, chat_template and the like, and lists of token ids.
ids      request ids, UUIDs, long hexadecimal names, keys and tokens of services.

Nothing can promise to find everything private: read before you share.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import TYPE_CHECKING, Any, TypeVar

from logscope.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KINDS = ("paths", "ips", "hosts", "prompts", "ids")
Value = TypeVar("Value")

_QUOTED = r"""(?:'(?:[^'\\\n]|\\.)*(?:'|$)|"(?:[^"\\\n]|\\.)*(?:"|$))"""
_BARE = r"[^\s,;)\]}'\"]+"
# A bare value counts behind an equals sign only: prose is full of words with a colon behind them.
_EQUALS = r"""['"]?\s*=\s*"""
_COLON = r"""['"]?\s*[=:]\s*"""

_PROMPT_KEYS = r"(?:text|prompts?|content|messages|chat_template|input_text|output_text|system_prompt|question|answer)"
_PROMPT = re.compile(rf"(?P<key>\b{_PROMPT_KEYS}{_COLON})(?P<value>{_QUOTED}|\[[^\]\n]*\]?)", re.IGNORECASE)
_TOKENS = re.compile(rf"(?P<key>\b(?:input|output|prompt|token)_?ids{_COLON})(?P<value>\[[\d,\s\[\]]*)", re.IGNORECASE)


def _keyed(keys: str) -> re.Pattern[str]:
    """Return the pattern of ``key='value'``, ``'key': 'value'`` and ``key=value``."""
    return re.compile(
        rf"(?P<key>{keys}{_COLON})(?P<value>{_QUOTED})|(?P<key2>{keys}{_EQUALS})(?P<value2>{_BARE})", re.IGNORECASE
    )


_SECRET = _keyed(r"(?:api_key|apikey|secret|password|hf_token|auth_token|access_token)")
_BEARER = re.compile(r"(\bBearer\s+)([\w.~+/=-]+)", re.IGNORECASE)
_ID_KEY = _keyed(r"\b(?:rids?|request_id|session_id|trace_id)")
_ID = re.compile(
    r"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?:chatcmpl|cmpl|req)-[A-Za-z0-9-]{8,}"
    r"|sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}|(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{16,})\b",
    re.IGNORECASE,
)

_V4 = r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.]*\d)"
_V6 = r"(?<![\w:.-])(?=[0-9a-fA-F:]*:[0-9a-fA-F:]*:)(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])"
_ADDRESS = re.compile(rf"{_V4}|{_V6}")

_PATH_KEY = _keyed(r"(?:path|dir|directory|file|folder)")
_URL_PATH = re.compile(
    r"""(?P<site>\b[a-z][a-z0-9+.-]{0,30}://[^\s/'"]+)(?P<path>/[^\s'"]*[^\s'".,;:)])""", re.IGNORECASE
)
_QUOTED_PATH = re.compile(r"""(?P<quote>['"])(?P<path>(?:~|[A-Za-z]:)?[/\\][^'"\n]+)(?P=quote)""")
_PATH = re.compile(r"(?<![\w/<.\\~-])(?!//)(?:~[\w-]*|[A-Za-z]:(?=[\\/]))?(?:[/\\][\w.@+~%=-]+)+/?")
_PACKAGES = "site-packages/"

_TOP = (
    r"(?:internal|local|lan|corp|intranet|home|cluster|svc|com|net|org|io|ai|dev|cloud|edu|gov|mil|de|cn|jp|fr|uk|eu)"
)
# As long and as many as DNS allows (RFC 1035: 63 characters, 255 in all): a search stays linear whatever the text.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LABELS = rf"{_LABEL}(?:\.{_LABEL}){{0,20}}"
_HOST = re.compile(
    rf"(?P<scheme>\b[a-z][a-z0-9+.-]{{0,30}}://(?:[^\s/@'\"]+@)?)(?P<url>{_LABELS})"
    rf"|(?P<user>\b[\w.-]{{1,64}}@)(?P<login>{_LABELS})"
    rf"|(?P<key>(?:host|hostname|node|addr|address|server_name)(?:{_EQUALS}['\"]?|{_COLON}['\"]))(?P<value>{_LABELS})(?=$|[\s,;:/'\")\]}}])"
    rf"|^(?P<nccl>{_LABELS})(?=:\d+:\d+ \[\d+\] NCCL)"
    rf"|(?P<pod>\[pod/)(?P<podname>[\w.-]+)"
    rf"|^(?P<container>[A-Za-z][\w.-]*-\d+)(?= +\| )"
    rf"|(?<![\w@./-])(?P<name>(?:{_LABEL}\.){{1,20}}{_TOP})(?![\w-]|\.\w)",
    re.IGNORECASE | re.MULTILINE,
)
# Values that are no private text, whatever their key.
_SAYS_NOTHING = frozenset({"", "localhost", "none", "null", "true", "false", "auto"})


class Redactor:
    """Replaces private text, the same text always by the same name.

    ``kinds`` are among KINDS; ``hosts`` are names known from elsewhere (a fetched file's host). Raises
    :class:`UsageError` for a kind there is not.
    """

    def __init__(self, kinds: Iterable[str] = KINDS, hosts: Iterable[str] = ()) -> None:
        self.kinds = frozenset(_kind(word) for word in kinds)
        self._names: dict[str, dict[str, str]] = {}
        self._hosts: dict[str, str] = {}
        self._known: re.Pattern[str] | None = None  # all of them, made again when one was learned
        for host in hosts:
            self.learn_host(host)

    def learn_host(self, host: str) -> None:
        """Take a name that is a host's, known from elsewhere: it is replaced wherever it stands."""
        self._host(host)

    def text(self, text: str) -> str:
        """Return the text without what is private."""
        steps: list[tuple[str, Callable[[str], str]]] = [
            ("prompts", self._prompts),
            ("ids", self._ids),
            ("ips", self._ips),
            # A key that ends in path is private as a whole; hosts within it need no name of their own.
            ("paths", self._paths),
            ("hosts", self._host_names),
        ]
        for kind, step in steps:
            if kind in self.kinds:
                text = step(text)
        return text

    def value(self, value: Value, key: str | None = None) -> Value:
        """Return a value with every text in it redacted: lists, dicts, tuples and dataclasses are gone through.

        A text in a dict is read with its key, as ``model_path='...'`` in a log would be.
        """
        return self._value(value, key)  # type: ignore[no-any-return]

    def _value(self, value: Any, key: str | None) -> Any:
        if isinstance(value, str):
            return self._keyed(key, value)
        if isinstance(value, dict):
            return {name: self._value(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self._value(item, key) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(
                value,
                **{f.name: self._value(getattr(value, f.name), None) for f in dataclasses.fields(value) if f.init},
            )
        return value

    def _keyed(self, key: str | None, text: str) -> str:
        """Redact a text that a dict holds under a key."""
        if key is None:
            return self.text(text)
        quoted = "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
        before = f"{key}={quoted}"
        after = self.text(before)
        if after == before:
            return text
        head = f"{key}='"
        if after.startswith(head) and after.endswith("'"):
            inner = after[len(head) : -1]
            return inner.replace("\\n", "\n").replace("\\'", "'").replace("\\\\", "\\")
        return after.removeprefix(f"{key}=")

    def _name(self, kind: str, text: str) -> str:
        """Return the name that stands for a text: the first host is host-1, wherever it stands."""
        names = self._names.setdefault(kind, {})
        return names.setdefault(text, f"{kind}-{len(names) + 1}")

    def _prompts(self, text: str) -> str:
        def hide(found: re.Match[str]) -> str:
            return found["key"] + self._quoted("prompt", found["value"])

        return _TOKENS.sub(hide, _PROMPT.sub(hide, text))

    def _ids(self, text: str) -> str:
        text = _SECRET.sub(lambda found: self._pair("secret", found), text)
        text = _BEARER.sub(lambda found: found[1] + self._quoted("secret", found[2]), text)
        text = _ID_KEY.sub(lambda found: self._pair("id", found), text)
        return _ID.sub(lambda found: self._name("id", found[0]), text)

    def _pair(self, kind: str, found: re.Match[str]) -> str:
        """Return a key with its value replaced."""
        return (found["key"] or found["key2"]) + self._quoted(kind, found["value"] or found["value2"])

    def _quoted(self, kind: str, value: str) -> str:
        """Return the name of a value in the quotes it had; a value that says nothing, or is a name already, stays."""
        bare = value.strip("'\"")
        if bare.lower() in _SAYS_NOTHING or re.fullmatch(rf"/?{kind}-\d+(?:/.*)?", bare):
            return value
        name = self._path(bare) if kind == "path" else self._name(kind, bare)
        return f"{value[0]}{name}{value[0]}" if value[0] in "'\"" else name

    def _ips(self, text: str) -> str:
        def hide(found: re.Match[str]) -> str:
            try:
                address = ipaddress.ip_address(found[0])
            except ValueError:  # a clock, a version, a device list
                return found[0]
            return found[0] if address.is_loopback or address.is_unspecified else self._name("ip", str(address))

        return _ADDRESS.sub(hide, text)

    def _paths(self, text: str) -> str:
        text = _PATH_KEY.sub(lambda found: self._pair("path", found), text)
        text = _URL_PATH.sub(lambda found: found["site"] + self._path(found["path"]), text)
        text = _QUOTED_PATH.sub(lambda found: f"{found['quote']}{self._path(found['path'])}{found['quote']}", text)
        return _PATH.sub(lambda found: self._path(found[0]), text)

    def _path(self, path: str) -> str:
        """Return the name of a path, what is public of it kept."""
        if re.match(r"/path-\d+(?:/|$)", path):
            return path
        folder, packages, rest = path.partition(_PACKAGES)
        if packages:
            return f"/{self._name('path', folder.rstrip('/'))}/{packages}{rest}"
        return "/" + self._name("path", path.rstrip("/") or path)

    def _host(self, host: str) -> str:
        """Return the name of a host, known from now on wherever it stands."""
        if host.lower() in _SAYS_NOTHING or re.fullmatch(r"(?:host|ip|path)-\d+|\d+", host) or _ADDRESS.fullmatch(host):
            return host
        name = host.lower()
        if name not in self._hosts:
            self._hosts[name] = f"host-{len(self._hosts) + 1}"
            self._known = None
        return self._hosts[name]

    def _host_names(self, text: str) -> str:
        def hide(found: re.Match[str]) -> str:
            if found["url"]:
                return re.sub(r"[^/@]+@$", "user@", found["scheme"]) + self._host(found["url"])
            if found["login"]:
                return "user@" + self._host(found["login"])
            if found["value"]:
                return found["key"] + self._host(found["value"])
            if found["podname"]:
                return found["pod"] + self._host(found["podname"])
            return self._host(found["nccl"] or found["container"] or found["name"])

        text = _HOST.sub(hide, text)
        if not self._hosts:
            return text
        if self._known is None:
            known = "|".join(re.escape(host) for host in sorted(self._hosts, key=len, reverse=True))
            self._known = re.compile(rf"(?<![\w-])(?:{known})(?![\w-])", re.IGNORECASE)
        return self._known.sub(lambda found: self._hosts[found[0].lower()], text)


def _kind(word: str) -> str:
    """Return a known kind, or raise with the nearest one."""
    if word in KINDS:
        return word
    raise UsageError(
        f"nothing to redact is called '{word}'",
        help=did_you_mean(word, KINDS) or f"give some of: {', '.join(KINDS)}",
    )
