-- uses: state
-- 6 table, 7 maximum number, then for each: key, the value that was read, the new one or '', milliseconds
-- counts:TABLE: keys by expiry, in the store's time
-- Returns nothing if a value has changed; otherwise for each whether there was room for it.
local all = key('counts:' .. ARGV[6])
local function name_of(index)
  return key('count:' .. ARGV[6] .. ':' .. ARGV[index])
end
for index = 8, #ARGV, 4 do
  if (redis.call('GET', name_of(index)) or '') ~= ARGV[index + 1] then
    return reply(false)
  end
end
local function is_full()
  if redis.call('ZCARD', all) < tonumber(ARGV[7]) then
    return false
  end
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', all, '-inf', text(now), 'LIMIT', 0, 100)) do
    redis.call('ZREM', all, old)
    redis.call('DEL', key('count:' .. ARGV[6] .. ':' .. old))
  end
  return redis.call('ZCARD', all) >= tonumber(ARGV[7])
end
local room = {}
for index = 8, #ARGV, 4 do
  local name, milliseconds = name_of(index), tonumber(ARGV[index + 3])
  room[#room + 1] = 1
  if ARGV[index + 2] == '' then
    redis.call('DEL', name)
    redis.call('ZREM', all, ARGV[index])
  else
    if ARGV[index + 1] == '' and is_full() then
      if ARGV[6] == 'wide' then
        room[#room] = 0
      else
        -- Evict the key that expires first.
        local least = redis.call('ZPOPMIN', all)[1]
        redis.call('DEL', key('count:' .. ARGV[6] .. ':' .. least))
      end
    end
    if room[#room] == 1 then
      redis.call('SET', name, ARGV[index + 2], 'PX', milliseconds + DAY)
      redis.call('ZADD', all, text(now + milliseconds * 1000), ARGV[index])
      keep(all, milliseconds + DAY)
    end
  end
end
return reply(room)
