-- uses: state
-- 6 topic, 7 how many
local notes, order = key('notes:' .. ARGV[6]), key('note_order:' .. ARGV[6])
local rows, first, limit = {}, 0, tonumber(ARGV[7])
while #rows < 2 * limit do
  local names = redis.call('ZREVRANGE', order, first, first + 499)
  for _, name in ipairs(names) do
    local note = redis.call('HGET', notes, name)
    if #rows < 2 * limit and note and tonumber(string.match(note, '^%d+')) > now then
      rows[#rows + 1] = name
      rows[#rows + 1] = note
    end
  end
  if #names < 500 then
    break
  end
  first = first + 500
end
return reply(rows)
