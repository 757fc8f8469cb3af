-- Every script begins with this: whether we understand the layout, what time it is, what the log's last number is.
--
-- KEYS[1] is the state, a hash; every other key begins as it does, and has the same hash tag.
-- ARGV[1] the time of day in microseconds, or '' for that of this server    ARGV[2] the latest time the caller knows
-- ARGV[3], ARGV[4] number, and id and era, of the last revocation the caller knows    ARGV[5] a random text
--
-- Times are kept in the store's own time, which never goes back: the time of day plus `shift`. If a clock is set back,
-- `shift` grows by as much, and everything lives as long as it was meant to.
local VERSION = '1'
local DAY = 86400000

local prefix = string.sub(KEYS[1], 1, -6)
local state = redis.call('HMGET', KEYS[1], 'version', 'shift', 'latest', 'head', 'id', 'forgotten', 'unfinished', 'era')
if state[1] and state[1] ~= VERSION then
  return {'layout', state[1]}
end
local clock = tonumber(ARGV[1])
if not clock then
  local time = redis.call('TIME')
  clock = time[1] * 1000000 + time[2]
end
local shift = tonumber(state[2] or 0)
local latest = math.max(tonumber(state[3] or 0), tonumber(ARGV[2]))
local head, head_id, forgotten = tonumber(state[4] or 0), state[5] or '', tonumber(state[6] or 0)
local unfinished = tonumber(state[7] or 0)
-- Another one begins whenever revocations were lost.
local era = state[8] or ''
local now = math.max(clock + shift, latest)

local function key(name)
  return prefix .. name
end

local function text(number)
  return string.format('%.0f', number)
end

local function reply(answer)
  return {'ok', clock, shift, now, head, head_id .. ' ' .. era, answer}
end

-- Also refused where this server must not be written: it has become a replica, or has lost its own.
local function note_time()
  redis.call('HSET', KEYS[1], 'version', VERSION, 'latest', text(now))
end

-- A look that is to be confirmed writes something, so that it can be. A command that needs no memory comes first, and
-- then a full memory is no reason to refuse the other.
local function confirm_if(wanted)
  if wanted == '1' then
    redis.call('DEL', key('nothing'))
    note_time()
  end
end

-- How long a key is kept, in milliseconds: a day longer than it counts, so that only space depends on it.
local function kept_for(expires)
  return text(math.min(math.max(math.floor((expires - now) / 1000), 0), 3650 * DAY) + DAY)
end

-- For a key that holds entries of different lifetimes.
local function keep(name, milliseconds)
  if redis.call('PTTL', name) < tonumber(milliseconds) then
    redis.call('PEXPIRE', name, milliseconds)
  end
end
