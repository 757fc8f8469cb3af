-- uses: state log session change revoking
-- 6 number, 7 cursor
-- Goes on with a revocation of many sessions; how many ended, and where to go on.
local entry = redis.call('HGET', key('unfinished'), ARGV[6])
if not entry then
  return reply({0, '0'})
end
local ended, cursor = end_portion(cjson.decode(entry), tonumber(ARGV[6]), ARGV[7])
note_progress(ARGV[6], entry, cursor)
return reply({ended, cursor})
