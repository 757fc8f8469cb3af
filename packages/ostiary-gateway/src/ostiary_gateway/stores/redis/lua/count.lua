-- uses: state
return reply(redis.call('ZCARD', key('token_expiry')))
