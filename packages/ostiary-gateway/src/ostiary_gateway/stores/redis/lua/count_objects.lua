-- uses: state
-- 6 kind, 7 the beginning of the names
-- No byte of UTF-8 is 255.
local prefix = ARGV[7]
return reply(redis.call('ZLEXCOUNT', key('object_names:' .. ARGV[6]), '[' .. prefix, '(' .. prefix .. '\255'))
