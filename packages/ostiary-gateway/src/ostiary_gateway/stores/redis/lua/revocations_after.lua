-- uses: state log
-- 6 a number, or '' for the head alone; 7 how many are read at most
if has_diverged() then
  return {'diverged'}
end
local entries = {}
local after = tonumber(ARGV[6])
if after then
  -- Whoever trusts what it remembers must have been told so by the primary, not by a server that once was it.
  confirm_if('1')
  if head - after <= tonumber(ARGV[7]) then
    for number = math.max(after, 0) + 1, head do
      local entry = redis.call('HGET', key('log'), text(number))
      if entry then
        entries[#entries + 1] = text(number)
        entries[#entries + 1] = entry
      end
    end
  end
end
return reply({forgotten, entries})
