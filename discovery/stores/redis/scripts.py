"""The Lua scripts: each write is one of them, so that no replica ever sees half of it.

Order matters where Redis can refuse a step, since nothing is rolled back: the revision is counted before the value is
stored (full memory then changes nothing at all), and after it is deleted (a full memory must not keep a pool). A
refused PUBLISH never fails a write, it is told beside it: the others see the revision move. Numbers pass through Lua
as doubles, so they are written with ``%.0f``.
"""

import hashlib
from collections.abc import Sequence

from discovery.stores.redis.link import pack

# A loss is settled under its own reason and shortens nothing that settles for longer: whoever ends a hold of theirs
# removes the key only while it names that hold.
_EPOCH = """
local function begin(key, settling, candidate, lease, reason)
  redis.call('SET', key, candidate)
  local longest = string.format('%.0f', math.max(tonumber(lease), redis.call('PTTL', settling)))
  redis.call('SET', settling, reason, 'PX', longest)
end
local function epoch(key, settling, candidate, lease, reason)
  local found = redis.call('GET', key)
  if found then return found end
  begin(key, settling, candidate, lease, reason)
  return candidate
end
"""

_NEW = "'Redis holds no epoch: it is new, or was emptied'"


class Script:
    """One script: its source, and the commands that run it by hash or, where the server does not know it, by source."""

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def prefix(self, parts: int, keys: int) -> bytes:
        """The start of a command by hash, to which ``parts`` bulk strings follow, the first ``keys`` of them keys."""
        return b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n%d\r\n" % (parts + 3, self.sha, keys)

    def command(self, keys: Sequence[str], arguments: Sequence[bytes | str | int]) -> bytes:
        """The command by hash."""
        return pack("EVALSHA", self.sha, len(keys), *keys, *arguments)

    def with_source(self, command: bytes) -> bytes:
        """The same command by source."""
        by_hash = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % self.sha
        by_source = b"$4\r\nEVAL\r\n$%d\r\n%b\r\n" % (len(self.source), self.source)
        return command.replace(by_hash, by_source, 1)


_REFUSAL = "type(told) == 'table' and told.err or ''"

# KEYS pool revision epoch settling; ARGV value lease-ms pool-as-json channel candidate-epoch
# Answers {0 renewed, revision, epoch}, or {1 created | 2 changed, revision, epoch, why PUBLISH was refused or ''}.
PUT = Script(
    _EPOCH
    + f"""
local old = redis.call('GET', KEYS[1])
if old == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) == 1 then
  local now = epoch(KEYS[3], KEYS[4], ARGV[5], ARGV[2], {_NEW})
  return {{0, redis.call('GET', KEYS[2]) or '0', now}}
end
local revision = string.format('%.0f', redis.call('INCR', KEYS[2]))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local now = epoch(KEYS[3], KEYS[4], ARGV[5], ARGV[2], {_NEW})
local told = redis.pcall('PUBLISH', ARGV[4], '{{"epoch":"' .. now .. '","revision":' .. revision
  .. ',"event":"put","pool":' .. ARGV[3] .. ',"lease_ms":' .. ARGV[2] .. ',"registration":' .. ARGV[1] .. '}}')
return {{old and 2 or 1, revision, now, {_REFUSAL}}}
"""
)

# KEYS pool revision epoch settling; ARGV pool-as-json channel candidate-epoch lease-ms ('' | '=' instance)
# Answers {revision, epoch, why PUBLISH was refused or ''}, or 0 where the stored one is another instance's.
DELETE = Script(
    _EPOCH
    + f"""
if ARGV[5] ~= '' then
  local stored = redis.call('GET', KEYS[1])
  local read, registration = pcall(cjson.decode, stored or '')
  if not read or type(registration) ~= 'table' or registration.instance_id ~= string.sub(ARGV[5], 2) then return 0 end
end
redis.call('DEL', KEYS[1])
local revision = string.format('%.0f', redis.call('INCR', KEYS[2]))
local now = epoch(KEYS[3], KEYS[4], ARGV[3], ARGV[4], {_NEW})
local told = redis.pcall('PUBLISH', ARGV[2], '{{"epoch":"' .. now .. '","revision":' .. revision
  .. ',"event":"delete","pool":' .. ARGV[1] .. '}}')
return {{revision, now, {_REFUSAL}}}
"""
)

# KEYS epoch settling; ARGV candidate reason lease-ms: makes the epoch where there is none.
ESTABLISH = Script(_EPOCH + "return epoch(KEYS[1], KEYS[2], ARGV[1], ARGV[3], ARGV[2])")

# KEYS epoch settling; ARGV candidate reason lease-ms expected: a new epoch unless somebody else made one meanwhile.
REPLACE_EPOCH = Script(
    _EPOCH
    + """
if redis.call('GET', KEYS[1]) ~= ARGV[4] then return 0 end
begin(KEYS[1], KEYS[2], ARGV[1], ARGV[3], ARGV[2])
return 1
"""
)

# KEYS settling; ARGV reason ms: nothing where it settles for as long already.
SETTLE = Script(
    """
if redis.call('PTTL', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
)

# KEYS settling; ARGV reason: nothing where it settles for another reason by now.
END_SETTLING = Script("if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])")
