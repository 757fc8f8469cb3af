-- uses: state session
-- 6 cursor, 7 about how many
-- Checks some sessions. Returns the next cursor, the numbers of sessions and tokens, and the number of each error.
local mistakes = {session = 0, index = 0, token = 0}
local sessions, tokens = 0, 0
local scan = redis.call('ZSCAN', key('by_creation'), ARGV[6], 'COUNT', ARGV[7])
for position = 1, #scan[2], 2 do
  local id = scan[2][position]
  local session = load_session(id)
  if session == nil then
    mistakes.session = mistakes.session + 1
  else
    sessions = sessions + 1
    local username = cjson.decode(session.user)[1]
    local indexes = {key('by_expiry'), key('user:' .. username)}
    for _, group in ipairs(groups_of(session)) do
      indexes[#indexes + 1] = key('group:' .. group)
    end
    for _, index in ipairs(indexes) do
      if not redis.call('ZSCORE', index, id) then
        mistakes.index = mistakes.index + 1
      end
    end
    for _, digest in ipairs(redis.call('SMEMBERS', key('tokens_of:' .. id))) do
      local token = load_token(digest)
      tokens = tokens + 1
      if token == nil or token.id ~= id or not redis.call('ZSCORE', key('token_expiry'), digest) then
        mistakes.token = mistakes.token + 1
      end
    end
  end
end
return reply({scan[1], sessions, tokens, mistakes.session, mistakes.index, mistakes.token})
