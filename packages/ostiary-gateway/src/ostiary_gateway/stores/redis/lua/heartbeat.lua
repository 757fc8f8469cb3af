-- uses: state log
-- 6 microseconds
-- Returns the unfinished revocations of many sessions that made no progress for so long.
if has_diverged() then
  return {'diverged'}
end
correct_time()
note_time()
local abandoned = {}
if unfinished > 0 then
  for _, number in ipairs(redis.call('HKEYS', key('unfinished'))) do
    local progress = tonumber(redis.call('HGET', key('progress'), number) or 0)
    if now - progress >= tonumber(ARGV[6]) then
      abandoned[#abandoned + 1] = number
    end
  end
end
return reply(abandoned)
