-- uses: state
-- 6 table, then keys
local values = {}
for index = 7, #ARGV do
  values[#values + 1] = redis.call('GET', key('count:' .. ARGV[6] .. ':' .. ARGV[index]))
end
return reply(values)
