-- Changing sessions and tokens.
-- by_creation, user:NAME, group:NAME: session ids by creation    by_expiry: session ids    token_expiry: digests
-- tokens_of:ID: digests    of_kind:KIND:NAME: session ids by expiry, except sign-ins

-- Whether a revocation with a larger number than `since` covers this session, or may have and was deleted already.
local function covers(session, since)
  if since < forgotten or since > head or is_marked('session', session.id, 0) then
    return true
  end
  if head == since then
    return false
  end
  local name, created = cjson.decode(session.user)[1], session.created
  if is_marked('before', '', since, created) or is_marked('user', name, since, created) then
    return true
  end
  for _, group in ipairs(groups_of(session)) do
    if is_marked('group', group, since, created) then
      return true
    end
  end
  return false
end

local function leave_indexes(session)
  local name = cjson.decode(session.user)[1]
  redis.call('ZREM', key('user:' .. name), session.id)
  redis.call('ZREM', key('of_kind:' .. session.kind .. ':' .. name), session.id)
  for _, group in ipairs(groups_of(session)) do
    redis.call('ZREM', key('group:' .. group), session.id)
  end
end

local function delete_token(digest, id)
  redis.call('DEL', key('token:' .. digest))
  redis.call('SREM', key('tokens_of:' .. id), digest)
  return redis.call('ZREM', key('token_expiry'), digest)
end

-- Returns how many tokens were deleted with it.
local function delete_session(session)
  local deleted = 0
  leave_indexes(session)
  redis.call('ZREM', key('by_creation'), session.id)
  redis.call('ZREM', key('by_expiry'), session.id)
  for _, digest in ipairs(redis.call('SMEMBERS', key('tokens_of:' .. session.id))) do
    deleted = deleted + delete_token(digest, session.id)
  end
  redis.call('DEL', key('session:' .. session.id), key('tokens_of:' .. session.id))
  return deleted
end

local function later_use(one, other)
  if one == '' or other == '' then
    return one == '' and other or one
  end
  return text(math.max(tonumber(one), tonumber(other)))
end

local function put_session(session)
  local old = load_session(session.id)
  if old and is_ended(old) then
    delete_session(old)
  elseif old then
    leave_indexes(old)
    session.sequence = old.sequence
    session.used = later_use(session.used, old.used)
  end
  local kept = kept_for(session.expires)
  local name, created = key('session:' .. session.id), text(session.created)
  redis.call('HSET', name, 'user', session.user, 'rest', session.rest, 'created', created,
    'expires', text(session.expires), 'sequence', text(session.sequence), 'kind', session.kind, 'name', session.name,
    'used', session.used, 'origin', session.origin)
  redis.call('PEXPIRE', name, kept)
  redis.call('ZADD', key('by_expiry'), text(session.expires), session.id)
  keep(key('by_expiry'), kept)
  local username = cjson.decode(session.user)[1]
  if session.kind ~= 'sign-in' then
    local of_kind = key('of_kind:' .. session.kind .. ':' .. username)
    redis.call('ZADD', of_kind, text(session.expires), session.id)
    keep(of_kind, kept)
  end
  local indexes = {key('by_creation'), key('user:' .. username)}
  for _, group in ipairs(groups_of(session)) do
    indexes[#indexes + 1] = key('group:' .. group)
  end
  for _, index in ipairs(indexes) do
    redis.call('ZADD', index, created, session.id)
    keep(index, kept)
  end
end

-- A session is nine arguments: id, user, rest, created, expires, kind, name, used or '', origin.
local function given_session(first)
  local id, user, rest, created, expires, kind, name, used, origin = unpack(ARGV, first, first + 8)
  return {
    id = id, user = user, rest = rest, created = tonumber(created) + shift, expires = tonumber(expires) + shift,
    kind = kind, name = name, used = used ~= '' and text(tonumber(used) + shift) or '', origin = origin,
  }
end

-- Tokens are five arguments each: digest, kind, issued, expires, delegation.
local function token_value(first, id)
  local _, kind, issued, expires, delegation = unpack(ARGV, first, first + 4)
  local value = kind .. ' ' .. text(tonumber(issued) + shift) .. ' ' .. text(tonumber(expires) + shift) .. ' ' .. id
  return delegation == '' and value or value .. '\0' .. delegation
end

-- Whether one of the digests belongs to another token already. The same token was added by an earlier attempt, whose
-- response was lost.
local function is_taken(first, id)
  local given = {}
  for index = first, #ARGV, 5 do
    local value = redis.call('GET', key('token:' .. ARGV[index]))
    if given[ARGV[index]] or (value and value ~= token_value(index, id)) then
      return true
    end
    given[ARGV[index]] = true
  end
  return false
end

local function put_tokens(first, id)
  local all, longest = key('tokens_of:' .. id), 0
  for index = first, #ARGV, 5 do
    local digest, expires = ARGV[index], tonumber(ARGV[index + 3]) + shift
    redis.call('SET', key('token:' .. digest), token_value(index, id), 'PX', kept_for(expires))
    redis.call('SADD', all, digest)
    redis.call('ZADD', key('token_expiry'), text(expires), digest)
    longest = math.max(longest, tonumber(kept_for(expires)))
  end
  if longest > 0 then
    keep(all, longest)
    keep(key('token_expiry'), longest)
  end
end
