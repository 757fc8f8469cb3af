-- uses: state log
-- 6 a number, or '' for the head alone; 7 maximum number to read
if has_diverged() then
  return {'diverged'}
end
local entries = {}
local after = tonumber(ARGV[6])
if after then
  -- A reader may rely on its cache only if the primary confirms it, not a server that used to be the primary.
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
