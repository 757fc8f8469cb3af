-- What replicas keep beside sessions: records of sign-ins under way, notes, counts. None of it is in the write-ahead log.

CREATE FUNCTION @schema@.put_record(
    p_clock bigint, p_seen bigint, p_expected bigint, p_digest bytea, p_data bytea, p_expires_at bigint, p_most integer,
    OUT outcome integer, OUT clock bigint, OUT "time" bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, p_expected);
    v_number bigint;
BEGIN
    clock := v_now.clock;
    "time" := v_now.time;
    IF v_now.time IS NULL THEN
        outcome := 2;
        RETURN;
    END IF;
    DELETE FROM @schema@.records WHERE digest = p_digest AND expires_at <= v_now.time;
    outcome := 0;
    -- Looked up first: an insert that fails would use up a number, and so push out the oldest record.
    IF NOT EXISTS (SELECT FROM @schema@.records WHERE digest = p_digest) THEN
        INSERT INTO @schema@.records (digest, expires_at, data)
            VALUES (p_digest, p_expires_at + v_now.shift, p_data)
            ON CONFLICT (digest) DO NOTHING RETURNING number INTO v_number;
        IF FOUND THEN
            outcome := 1;
            DELETE FROM @schema@.records WHERE number = ANY (ARRAY(
                SELECT number FROM @schema@.records WHERE number <= v_number - p_most FOR UPDATE SKIP LOCKED
            ));
        END IF;
    END IF;
END $$;

CREATE FUNCTION @schema@.put_notes(
    p_clock bigint, p_seen bigint, p_topic text, p_keys text[], p_data bytea[], p_micros bigint, p_most integer
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.read_time(p_clock, p_seen);
    v_last bigint;
BEGIN
    WITH put AS (
        INSERT INTO @schema@.notes AS n (topic, key_digest, key, written_at, expires_at, data)
            SELECT p_topic, sha256(convert_to(key, 'UTF8')), key, v_now.time, v_now.time + p_micros, data
            FROM unnest(p_keys, p_data) WITH ORDINALITY AS new (key, data, place) ORDER BY place
            ON CONFLICT (topic, key_digest) DO UPDATE SET number = excluded.number, written_at = excluded.written_at,
                expires_at = excluded.expires_at, data = excluded.data
            RETURNING n.number
    )
    SELECT max(number) INTO v_last FROM put;
    -- Not with every note: looking for the oldest takes longer than writing one.
    IF v_last % 64 < cardinality(p_keys) THEN
        DELETE FROM @schema@.notes WHERE topic = p_topic AND number <= (
            SELECT number FROM @schema@.notes WHERE topic = p_topic ORDER BY number DESC OFFSET p_most LIMIT 1
        );
    END IF;
END $$;

-- Replaces states that are still what the caller read; false, and nothing changes, if one is not. A state that is to be
-- kept until a time that is over is removed.
CREATE FUNCTION @schema@.write_counts(
    p_time bigint, p_wide boolean, p_digests bytea[], p_old bytea[], p_new bytea[], p_expires_at bigint[], p_most integer
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_count @schema@.counts;
    v_number bigint;
    v_places integer[];
    v_place integer;
BEGIN
    -- In one order, so that two callers with several keys do not wait for each other.
    v_places := ARRAY(SELECT place FROM unnest(p_digests) WITH ORDINALITY AS asked (digest, place) ORDER BY digest);
    FOREACH v_place IN ARRAY v_places LOOP
        SELECT * INTO v_count FROM @schema@.counts WHERE key_digest = p_digests[v_place] FOR UPDATE;
        IF (CASE WHEN v_count.expires_at > p_time THEN v_count.state ELSE '' END) <> p_old[v_place] THEN
            RETURN false;
        END IF;
    END LOOP;
    FOREACH v_place IN ARRAY v_places LOOP
        IF p_expires_at[v_place] <= p_time THEN
            DELETE FROM @schema@.counts WHERE key_digest = p_digests[v_place];
        ELSE
            UPDATE @schema@.counts SET state = p_new[v_place], expires_at = p_expires_at[v_place]
                WHERE key_digest = p_digests[v_place];
            IF NOT FOUND THEN
                INSERT INTO @schema@.counts (key_digest, wide, expires_at, state)
                    VALUES (p_digests[v_place], p_wide, p_expires_at[v_place], p_new[v_place])
                    ON CONFLICT (key_digest) DO NOTHING RETURNING number INTO v_number;
                IF NOT FOUND THEN
                    -- Somebody was quicker: what this call has changed is undone, and it is made again.
                    RAISE EXCEPTION 'the count has changed' USING ERRCODE = 'serialization_failure';
                END IF;
                IF v_number % 256 = 0 THEN
                    PERFORM @schema@.trim_counts(p_time, p_most);
                END IF;
            END IF;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- Narrow states make room: first those that are over, then those that matter for the shortest time.
CREATE FUNCTION @schema@.trim_counts(p_time bigint, p_most integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM @schema@.counts WHERE key_digest = ANY (ARRAY(
        SELECT key_digest FROM @schema@.counts WHERE expires_at <= p_time FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM @schema@.counts WHERE key_digest = ANY (ARRAY(
        SELECT key_digest FROM @schema@.counts WHERE NOT wide ORDER BY expires_at, number
        LIMIT greatest(0, (SELECT count(*) FROM @schema@.counts WHERE NOT wide) - p_most) FOR UPDATE SKIP LOCKED
    ));
END $$;

CREATE FUNCTION @schema@.sweep_replicas(p_clock bigint, p_seen bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.read_time(p_clock, p_seen);
BEGIN
    -- There are never so many of these that they would need portions.
    DELETE FROM @schema@.records WHERE number = ANY (ARRAY(
        SELECT number FROM @schema@.records WHERE expires_at <= v_now.time FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM @schema@.notes WHERE number = ANY (ARRAY(
        SELECT number FROM @schema@.notes WHERE expires_at <= v_now.time FOR UPDATE SKIP LOCKED
    ));
    DELETE FROM @schema@.counts WHERE key_digest = ANY (ARRAY(
        SELECT key_digest FROM @schema@.counts WHERE expires_at <= v_now.time FOR UPDATE SKIP LOCKED
    ));
END $$;
