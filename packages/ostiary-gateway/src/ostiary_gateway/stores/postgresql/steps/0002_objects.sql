-- Small objects with a name: service accounts, signing keys. They last until somebody deletes them.

CREATE SEQUENCE @schema@.object_versions;
CREATE TABLE @schema@.objects (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    changed_at bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (kind, name)
);

-- The new version; null if another is there than *p_version* (zero: none, null: any), and -1 if there is no room.
CREATE FUNCTION @schema@.put_object(
    p_clock bigint, p_seen bigint, p_kind text, p_name text, p_data bytea, p_version bigint, p_most integer
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_time bigint := (@schema@.begin_change(p_clock, p_seen, NULL)).time;
    v_version bigint;
BEGIN
    -- Of several that change it at once, the others wait here and then find another version.
    SELECT version INTO v_version FROM @schema@.objects WHERE kind = p_kind AND name = p_name FOR UPDATE;
    IF coalesce(v_version, 0) <> p_version THEN
        RETURN NULL;
    END IF;
    IF v_version IS NULL AND p_most <= (
        SELECT count(*) FROM (SELECT FROM @schema@.objects WHERE kind = p_kind LIMIT p_most) AS objects
    ) THEN
        RETURN -1;
    END IF;
    INSERT INTO @schema@.objects AS o (kind, name, version, changed_at, data)
        VALUES (p_kind, p_name, nextval('@schema@.object_versions'), v_time, p_data)
        -- Another has made it since we looked: that is what it must not have, unless whatever is there will do.
        ON CONFLICT (kind, name) DO UPDATE
            SET version = excluded.version, changed_at = excluded.changed_at, data = excluded.data
            WHERE p_version IS NULL OR o.version = p_version
        RETURNING version INTO v_version;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN v_version;
END $$;

CREATE FUNCTION @schema@.delete_object(
    p_clock bigint, p_seen bigint, p_kind text, p_name text, p_version bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @schema@.begin_change(p_clock, p_seen, NULL);
    DELETE FROM @schema@.objects
        WHERE kind = p_kind AND name = p_name AND (p_version IS NULL OR version = p_version);
    RETURN FOUND;
END $$;
