-- uses: state
-- 6 topic, 7 key
local note = redis.call('HGET', key('notes:' .. ARGV[6]), ARGV[7])
return reply(note and tonumber(string.match(note, '^%d+')) > now and note)
