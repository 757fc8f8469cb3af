-- uses: state
-- The whole log, and up to which number it is no longer known.
return reply({forgotten, redis.call('HGETALL', key('log'))})
