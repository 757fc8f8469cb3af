-- uses: state log
-- 6 head
-- Clears the log before an import. Returns the own head, without a change, if that is larger.
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
