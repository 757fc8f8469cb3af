-- uses: state log
-- 6 head
-- Empties the log, so that another can take its place; answers the own head, and changes nothing, if that is further.
if head > tonumber(ARGV[6]) then
  return reply(text(head))
end
correct_time()
local entries = redis.call('HGETALL', key('log'))
for index = 1, #entries, 2 do
  local _, kind, value = unpack(cjson.decode(entries[index + 1]))
  redis.call('DEL', key('marks:' .. kind .. ':' .. value))
end
redis.call('DEL', key('log'), key('log_by_time'))
head, head_id, forgotten = math.max(head, tonumber(ARGV[6])), new_id(), math.max(head, tonumber(ARGV[6]))
redis.call('HSET', KEYS[1], 'version', VERSION, 'head', text(head), 'id', head_id, 'forgotten', text(forgotten))
announce()
return reply(false)
