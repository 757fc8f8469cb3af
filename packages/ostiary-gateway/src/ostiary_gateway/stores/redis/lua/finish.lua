-- uses: state log session change revoking
-- 6 number, 7 cursor
-- Continues a revocation of many sessions. Returns how many ended, and the next cursor.
local entry = redis.call('HGET', key('unfinished'), ARGV[6])
if not entry then
  return reply({0, '0'})
end
local ended, cursor = end_portion(cjson.decode(entry), tonumber(ARGV[6]), ARGV[7])
note_progress(ARGV[6], entry, cursor)
return reply({ended, cursor})
