-- uses: state
-- 6 kind, 7 after this name or '', 8 maximum number
confirm_if('1')
local first = ARGV[7] == '' and '-' or '(' .. ARGV[7]
local names = redis.call('ZRANGEBYLEX', key('object_names:' .. ARGV[6]), first, '+', 'LIMIT', 0, ARGV[8])
local rows = {}
for _, name in ipairs(names) do
  rows[#rows + 1] = name
  rows[#rows + 1] = redis.call('HGET', key('objects:' .. ARGV[6]), name)
end
return reply(rows)
