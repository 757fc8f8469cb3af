-- The beginning of every script: check the version of the layout, and read the time and the last number of the log.
--
-- KEYS[1] is the state, a hash; every other key has the same prefix and hash tag.
-- ARGV[1] the time of day in microseconds, or '' for that of this server    ARGV[2] the latest time the caller knows
-- ARGV[3], ARGV[4] number, and id and era, of the last revocation the caller knows    ARGV[5] a random text
--
-- Times are stored in the store's own time, which never goes back: the time of day plus `shift`. If a clock is set
-- back, `shift` increases by as much, so that lifetimes are unchanged.
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
-- A new era begins whenever revocations were lost.
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

-- Fails if this server must not be written to: it has become a replica, or has lost its own.
local function note_time()
  redis.call('HSET', KEYS[1], 'version', VERSION, 'latest', text(now))
end

-- A read that must be confirmed writes something for the replicas to confirm. The first command must need no memory:
-- then Redis accepts the other even if its memory is full.
local function confirm_if(wanted)
  if wanted == '1' then
    redis.call('DEL', key('nothing'))
    note_time()
  end
end

-- How long a key is stored, in milliseconds: a day longer than it is valid, so that only space depends on it.
local function kept_for(expires)
  return text(math.min(math.max(math.floor((expires - now) / 1000), 0), 3650 * DAY) + DAY)
end

-- For a key whose entries have different lifetimes.
local function keep(name, milliseconds)
  if redis.call('PTTL', name) < tonumber(milliseconds) then
    redis.call('PEXPIRE', name, milliseconds)
  end
end
