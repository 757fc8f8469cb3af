-- uses: state log session change revoking
-- 6 and on: number and entry of revocations that the caller knows of
-- After a failover that has lost some: nobody can be sure of numbers so far, and what was revoked is revoked again.
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
    -- Dated: who has signed in since then stays. Clocks may differ a little, in favour of the revocation.
    local until_then = tonumber(recorded) + TOLERANCE
    at = text(at == '' and until_then or math.min(tonumber(at), until_then))
    -- What it leaves to be done is found by the next heartbeat.
    revoke(id, kind, value, at, by, owner or '')
  end
end
announce()
return reply('restored')
