-- uses: state
-- Returns the number up to which the log was deleted, and the rest of the log.
return reply({forgotten, redis.call('HGETALL', key('log'))})
