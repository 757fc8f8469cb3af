-- uses: state log session change revoking
-- 6 kind, 7 value, 8 at or '', 9 by, 10 owner
if has_diverged() then
  return {'diverged'}
end
local at = tonumber(ARGV[8])
local ended, cursor = revoke(new_id(), ARGV[6], ARGV[7], at and text(at + shift) or '', ARGV[9], ARGV[10])
announce()
return reply({ended, cursor, text(head), redis.call('HGET', key('log'), text(head))})
