-- The revocation log. Each entry has the next number, and an id that distinguishes two histories after a failover.
-- log: number -> [id, kind, value, at, by, recorded, undone, owner]
-- marks:KIND:VALUE: the numbers of the revocations of this value
local HOUR = 3600 * 1000000
local TOLERANCE = 2 * 1000000
local MARKS_KEPT = 2 * 3600 * 1000
local made = 0

local function new_id()
  made = made + 1
  return ARGV[5] .. '.' .. made
end

local known_number = tonumber(ARGV[3])
local known_id, known_era = string.match(ARGV[4], '^(%S*) (%S*)$')

-- Whether this server lacks revocations that the caller knows, or has others with their numbers.
local function lacks_some()
  if not known_number or known_number <= forgotten then
    return false
  end
  if known_number >= head then
    return known_number > head or known_id ~= head_id
  end
  -- Every number that this server assigned has an entry; one from the log of another store may have none.
  local entry = redis.call('HGET', key('log'), text(known_number))
  return entry and cjson.decode(entry)[1] ~= known_id
end

-- Like lacks_some, also if another process has detected it: the caller may know revocations that no one else does.
local function has_diverged()
  return known_number and (known_era ~= era or lacks_some())
end

local function write_entry(number, entry)
  local _, kind, value, _, _, recorded = unpack(entry)
  local encoded = cjson.encode(entry)
  redis.call('HSET', key('log'), text(number), encoded)
  redis.call('ZADD', key('log_by_time'), recorded, string.format('%016.0f', number))
  if kind ~= 'token' and kind ~= 'gap' then
    local marks = key('marks:' .. kind .. ':' .. value)
    redis.call('ZADD', marks, text(number), text(number))
    keep(marks, MARKS_KEPT)
  end
  return encoded
end

local function write_down(id, kind, value, at, by, owner)
  head, head_id = head + 1, id
  local entry = write_entry(head, {id, kind, value, at, by, text(now), 0, owner})
  redis.call('HSET', KEYS[1], 'version', VERSION, 'latest', text(now), 'head', text(head), 'id', head_id)
  return entry
end

local function announce()
  redis.call('PUBLISH', key('revoked'), text(head))
end

-- Corrects the time if the clock was set back. A number without a revocation makes readers drop their caches.
local function correct_time()
  if clock + shift < latest - TOLERANCE then
    shift, now = latest - clock, latest
    redis.call('HSET', KEYS[1], 'shift', text(shift))
    write_down(new_id(), 'gap', '', '', '', '')
    announce()
  end
end

-- Returns the number of the last revocation that was recorded before this time.
local function last_before(moment)
  local first = redis.call('ZRANGEBYSCORE', key('log_by_time'), text(moment), '+inf', 'LIMIT', 0, 1)
  return first[1] and tonumber(first[1]) - 1 or head
end

local function is_marked(kind, value, since, created)
  local numbers = redis.call('ZRANGEBYSCORE', key('marks:' .. kind .. ':' .. value), '(' .. text(since), '+inf')
  for _, number in ipairs(numbers) do
    local entry = redis.call('HGET', key('log'), number)
    if entry then
      local _, _, _, at, _, _, undone = unpack(cjson.decode(entry))
      if undone == 0 and (not created or at == '' or tonumber(at) >= created) then
        return true
      end
    end
  end
  return false
end
