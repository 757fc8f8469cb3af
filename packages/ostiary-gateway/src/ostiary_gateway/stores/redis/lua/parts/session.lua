-- Reading sessions and tokens.
-- session:ID: user [username, uid, groups, extra], rest, created, expires, sequence, kind, name, used,
--   origin [names of its origins among the groups, hint]
-- token:DIGEST: kind issued expires ID, and with a delegation, a NUL and the delegation. Versions without delegations
-- read all of that as the id and find no session; otherwise they would grant such a token all rights of its session.
-- unfinished: revocations of so many sessions that they are still being deleted; their sessions are invalid already.

-- The names in the index: its groups, and its origins as groups.
local function groups_of(session)
  local _, _, groups = unpack(cjson.decode(session.user))
  if session.origin ~= '' then
    for _, name in ipairs(cjson.decode(session.origin)[1]) do
      groups[#groups + 1] = name
    end
  end
  return groups
end

local function ends(entry, number, session)
  local _, kind, value, at = unpack(entry)
  if session.sequence >= number or (at ~= '' and session.created > tonumber(at)) then
    return false
  end
  if kind == 'before' then
    return true
  end
  if kind == 'user' then
    return cjson.decode(session.user)[1] == value
  end
  for _, group in ipairs(groups_of(session)) do
    if group == value then
      return true
    end
  end
  return false
end

-- Returns the session, whether or not it has expired; nil if there is none.
local function load_session(id)
  local row = redis.call('HMGET', key('session:' .. id), 'user', 'rest', 'created', 'expires', 'sequence', 'kind', 'name',
    'used', 'origin')
  if not row[1] then
    return nil
  end
  return {
    id = id, user = row[1], rest = row[2],
    created = tonumber(row[3]), expires = tonumber(row[4]), sequence = tonumber(row[5]),
    -- Added later: sessions of an earlier version have none of these.
    kind = row[6] or 'sign-in', name = row[7] or '', used = row[8] or '', origin = row[9] or '',
  }
end

local function is_ended(session)
  if unfinished > 0 then
    local entries = redis.call('HGETALL', key('unfinished'))
    for index = 1, #entries, 2 do
      if ends(cjson.decode(entries[index + 1]), tonumber(entries[index]), session) then
        return true
      end
    end
  end
  return false
end

local function is_alive(session)
  return session ~= nil and session.expires > now and not is_ended(session)
end

local function load_token(digest)
  local value = redis.call('GET', key('token:' .. digest))
  if not value then
    return nil
  end
  local kind, issued, expires, id = string.match(value, '^(%a+) (%-?%d+) (%-?%d+) (.*)$')
  local bare, delegation = string.match(id or '', '^(%Z*)%z(.*)$')
  return {
    kind = kind, issued = tonumber(issued), expires = tonumber(expires), id = bare or id, delegation = delegation or '',
  }
end

local function session_row(session)
  return {
    session.id, session.user, session.rest, session.created, session.expires, session.sequence, session.kind,
    session.name, session.used, session.origin,
  }
end

-- Returns a token and its session, if both are active.
local function living(digest)
  local token = load_token(digest)
  if token == nil or token.expires <= now then
    return nil
  end
  local session = load_session(token.id)
  if is_alive(session) then
    return token, session
  end
end
