-- uses: state
-- 6 kind, 7 prefix of the names
-- UTF-8 has no byte 255.
local prefix = ARGV[7]
return reply(redis.call('ZLEXCOUNT', key('object_names:' .. ARGV[6]), '[' .. prefix, '(' .. prefix .. '\255'))
