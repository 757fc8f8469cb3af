-- uses: state log session change revoking
-- 6 and on: number and entry of revocations that the caller knows
-- After a failover that lost some: previous numbers are unreliable, so the revocations are recorded and applied again.
correct_time()
if lacks_some() then
  head, era = math.max(head, known_number), new_id()
  write_down(new_id(), 'gap', '', '', '', '')
  forgotten = head
  redis.call('HSET', KEYS[1], 'forgotten', text(forgotten), 'era', era)
end
local restored, swept = key('restored'), tonumber(redis.call('HGET', KEYS[1], 'swept') or 0)
for index = 6, #ARGV, 2 do
  local id, kind, value, at, by, recorded, _, owner = unpack(cjson.decode(ARGV[index + 1]))
  local kept = redis.call('HGET', key('log'), ARGV[index])
  local is_lost = tonumber(ARGV[index]) > swept and not (kept and cjson.decode(kept)[1] == id)
  if is_lost and redis.call('SADD', restored, id) == 1 then
    redis.call('PEXPIRE', restored, MARKS_KEPT)
    -- Dated: sessions that began since then stay. Small clock differences are resolved in favour of the revocation.
    local until_then = tonumber(recorded) + TOLERANCE
    at = text(at == '' and until_then or math.min(tonumber(at), until_then))
    -- The next heartbeat finds unfinished work.
    revoke(id, kind, value, at, by, owner or '')
  end
end
announce()
return reply('restored')
