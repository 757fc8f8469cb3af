-- Objects, which are stored until they are deleted.
-- objects:KIND: name -> version changed data    object_names:KIND: names in order    object_kinds: kinds
local function object_version(kind, name)
  local value = redis.call('HGET', key('objects:' .. kind), name)
  return value and tonumber(string.match(value, '^%d+')) or 0
end

-- A version is at least the time, so that a version that a failover loses is not used again.
local function next_version()
  local last = tonumber(redis.call('HGET', KEYS[1], 'object_version') or 0)
  local version = math.max(last + 1, clock)
  redis.call('HSET', KEYS[1], 'object_version', text(version))
  return version
end
