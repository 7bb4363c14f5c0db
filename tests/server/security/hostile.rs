//! Tests of I9: a hostile search_path changes no result, and no function of a hostile schema is
//! executed.

use anyhow::{Context, Result};
use idem_testkit::{Database, Session, until};

const TRAPS: &str = include_str!("hostile.sql");
const OVERLOADS: &str = include_str!("overloads.sql");

/// A search_path in which every trap comes before the object that it imitates.
const PATH: &str = "SET search_path = evil, pg_temp, pg_catalog, idem, public";

/// Settings that a user may change and that break code which depends on their defaults.
const SETTINGS: &str = "
    SET quote_all_identifiers = on; SET transform_null_equals = on; SET array_nulls = off;
    SET bytea_output = 'escape'; SET DateStyle = 'German'; SET IntervalStyle = 'iso_8601';
    SET TimeZone = 'Pacific/Chatham';
    SET standard_conforming_strings = off; SET check_function_bodies = off;
    SET enable_indexscan = off; SET plpgsql.extra_errors = 'all'";

/// A database with the traps, and a session of its owner.
struct Fixture {
    db: Database,
    owner: Session,
}

impl Fixture {
    async fn new(name: &str) -> Result<Self> {
        let db = Database::with_idem(name).await?;
        let owner = db.connect().await?;
        owner.run(TRAPS).await?;
        owner
            .run(
                "GRANT USAGE ON SCHEMA evil TO PUBLIC;
                 GRANT SELECT ON ALL TABLES IN SCHEMA evil TO PUBLIC",
            )
            .await?;
        Ok(Self { db, owner })
    }

    /// Connects as a new role of this kind, with traps in its search_path and in its temporary
    /// schema.
    async fn hostile(&self, kind: &str) -> Result<Session> {
        let role = self.db.role(kind).await?;
        self.owner
            .run(&format!("SELECT idem_grant('{role}', '{kind}')"))
            .await?;
        let session = self.db.connect_as(&role).await?;
        for relation in [
            "ring",
            "destination",
            "outbox_row",
            "relay",
            "relay_partition",
            "progress",
            "progress_0",
            "progress_rotation",
            "delayed",
            "parked",
            "parked_effect",
            "kind_of_role",
            "pending_0",
            "pending_1",
            "pending",
            "pending_rotation",
            "payload_0",
            "payload_row",
            "payload_rotation",
            "dead_letter",
            "retry_policy",
            "pg_proc",
            "pg_roles",
            "text",
        ] {
            session
                .run(&format!("CREATE TEMPORARY TABLE {relation} (id integer)"))
                .await?;
        }
        session.run(SETTINGS).await?;
        session.run(PATH).await?;
        Ok(session)
    }
}

/// The traps detect a name look-up. This shows that the tests below can fail.
#[tokio::test]
async fn traps_detect_a_name_look_up() -> Result<()> {
    let fixture = Fixture::new("traps").await?;
    let session = fixture.hostile("consumer").await?;
    for careless in [
        "SELECT now()",
        "SELECT 1::int4 = 1::int4",
        "SELECT 'a'::pg_catalog.text || 'b'::pg_catalog.text",
        "SELECT format('%s', 'a'::pg_catalog.text)",
        "SELECT max(n) FROM (VALUES (1)) v (n)",
        "SELECT unnest(ARRAY[1])",
        "SELECT 'a'::bytea",
        "SELECT * FROM pg_extension",
    ] {
        assert_eq!(
            session.refused(careless).await?.sqlstate,
            "EVIL0",
            "{careless}"
        );
    }
    // Create a careless function as an example of what the tests must find: the function runs with
    // the rights of its owner and looks up names in the search_path of its caller.
    fixture
        .owner
        .run(
            "SELECT idem_try_claim('m1', 'orders');
             CREATE FUNCTION public.careless(wanted text) RETURNS boolean
                 LANGUAGE plpgsql SECURITY DEFINER AS
             $$ BEGIN RETURN EXISTS (SELECT 1 FROM idem.destination d WHERE d.name = wanted);
             END $$",
        )
        .await?;
    let refusal = session.refused("SELECT public.careless('m1')").await?;
    assert_eq!(
        (
            refusal.sqlstate.as_str(),
            refusal.message.ends_with("ran as postgres")
        ),
        ("EVIL0", true),
        "{refusal:?}"
    );
    Ok(())
}

/// I9: the functions of a consumer look up no name in the search_path of the caller.
#[tokio::test]
async fn i9_consumer_functions_look_up_no_name() -> Result<()> {
    let fixture = Fixture::new("hostile_consumer").await?;
    let session = fixture.hostile("consumer").await?;
    let uuid = "pg_catalog.uuid '0192f3a4-0000-7abc-8def-0123456789ab'";
    let effects = r#"pg_catalog.jsonb '[{"topic": "t", "payload": {"n": 1.0}, "headers": {"h": 1},
                                         "deliver_after": "2030-01-01T00:00:00Z"}]'"#;
    session.run("BEGIN").await?;
    for (call, result) in [
        (
            "public.idem_try_claim('m1'::pg_catalog.text, 'orders')".to_owned(),
            "t",
        ),
        (
            "public.idem_try_claim('m1'::pg_catalog.text, 'orders')".to_owned(),
            "f",
        ),
        (format!("public.idem_try_claim({uuid}, 'orders')"), "t"),
        (
            "public.idem_try_claim_batch(ARRAY['m2'::pg_catalog.text, 'm1'], 'orders')".to_owned(),
            "{t,f}",
        ),
        (
            format!("public.idem_try_claim_uuid_batch(ARRAY[{uuid}], 'orders')"),
            "{f}",
        ),
        (
            format!("(public.idem_claim({uuid}, 'orders')).outcome"),
            "duplicate",
        ),
        (
            r"(public.idem_claim('m3'::pg_catalog.text, 'orders', true, '\\x01',
                                 '2030-01-01')).outcome"
                .to_owned(),
            "claimed",
        ),
        (
            format!(
                "public.idem_record_effects('m1'::pg_catalog.text, 'orders', {effects}) IS NULL"
            ),
            "f",
        ),
        (
            format!("public.idem_record_effects({uuid}, 'orders', {effects}) IS NULL"),
            "f",
        ),
        (
            format!(
                "public.idem_record_effects_batch('{{m2}}', 'orders',
                     pg_catalog.jsonb_build_array({effects})) IS NULL"
            ),
            "f",
        ),
        (
            format!("public.idem_try_record('m4'::pg_catalog.text, 'orders', {effects})"),
            "t",
        ),
        (
            "public.idem_send('t', pg_catalog.jsonb '1', headers => '{}') IS NULL".to_owned(),
            "f",
        ),
        (
            "public.idem_send_bytes('t', pg_catalog.bytea '1') IS NULL".to_owned(),
            "f",
        ),
        (
            "public.idem_is_claimed('m1'::pg_catalog.text, 'orders')".to_owned(),
            "t",
        ),
        (
            "(public.idem_effects('m1'::pg_catalog.text, 'orders')).headers".to_owned(),
            r#"{"h": 1}"#,
        ),
        (
            "public.idem_replay_effects('m1'::pg_catalog.text, 'orders')".to_owned(),
            "1",
        ),
        (
            r#"(public.idem_begin_call('m1'::pg_catalog.text, 'orders', 'charge',
                                       '{"amount": 5}')).state"#
                .to_owned(),
            "new",
        ),
        (
            format!("(public.idem_begin_call({uuid}, 'orders', 'charge')).attempt"),
            "1",
        ),
        (
            "public.idem_finish_call('m1'::pg_catalog.text, 'orders', 'charge', '7')".to_owned(),
            "",
        ),
        (
            format!("public.idem_fail_call({uuid}, 'orders', 'charge', 'no', false)"),
            "",
        ),
        (
            "(public.idem_calls('m1'::pg_catalog.text, 'orders')).response".to_owned(),
            "7",
        ),
        (format!("(public.idem_calls({uuid}, 'orders')).error"), "no"),
    ] {
        assert_eq!(
            session
                .text(&format!("SELECT {call}"))
                .await
                .with_context(|| call.clone())?,
            result,
            "{call}"
        );
    }
    session.run("COMMIT").await?;
    assert_eq!(
        fixture
            .owner
            .text(
                "SELECT string_agg(COALESCE(id, 'NULL'), ' ' ORDER BY id) FROM idem.inbox;
                 SELECT count(*) FROM idem.outbox_row"
            )
            .await?,
        "0192f3a4-0000-7abc-8def-0123456789ab m1 m2 m3 m4\n7"
    );
    Ok(())
}

/// I9: the functions for leases, the durable inbox and dead letters look up no name in the
/// search_path of the caller. These functions are written in SQL, run with the rights of the owner
/// and execute each other.
#[tokio::test]
async fn i9_lease_and_inbox_functions_look_up_no_name() -> Result<()> {
    let fixture = Fixture::new("hostile_work").await?;
    let (receiver, consumer) = (
        fixture.hostile("receiver").await?,
        fixture.hostile("consumer").await?,
    );
    let uuid = "pg_catalog.uuid '0192f3a4-0000-7abc-8def-0123456789ab'";
    assert_eq!(
        receiver
            .text(&format!(
                r#"SELECT public.idem_receive('m1'::pg_catalog.text, 'orders', pg_catalog.jsonb '1',
                       '{{"h": 1}}', 'k', NULL, 'T', 'text/plain');
                   SELECT public.idem_receive_bytes({uuid}, 'orders', pg_catalog.bytea '1',
                       key => 'k');
                   SELECT public.idem_receive_bytes('m3'::pg_catalog.text, 'orders',
                       pg_catalog.bytea '1', deliver_after => '2030-01-01')"#
            ))
            .await?,
        "t\nt\nt"
    );
    // Each entry is the id of a message, as text or as uuid, and the function that ends its lease.
    for (id, ended) in [
        ("'m1'::pg_catalog.text".to_owned(), "release"),
        (uuid.to_owned(), "complete"),
        ("'m1'::pg_catalog.text".to_owned(), "bury"),
    ] {
        assert_eq!(
            consumer
                .text("SELECT public.idem_next_wait('orders', 0)")
                .await?,
            "t",
            "{ended}"
        );
        let token = consumer
            .text("SELECT token FROM public.idem_next('orders', 1, '1 minute')")
            .await?;
        consumer
            .run(&format!(
                "SELECT public.idem_extend({id}, 'orders', {token}, '1 hour')"
            ))
            .await
            .with_context(|| format!("{id} {ended}"))?;
        let end = match ended {
            "release" => format!("idem_release({id}, 'orders', {token}, 'not yet')"),
            "complete" => format!(
                r#"idem_complete({id}, 'orders', {token}, '{{"topic": "t", "payload": 1}}')"#
            ),
            _ => format!(
                "idem_bury({id}, 'orders', {token}, '1', 'no', '{{}}', 'k', 'T', 'text/plain')"
            ),
        };
        // The released message waits for its retry, and later messages of its ordering key wait for
        // it. The test gives each message a key of its own, so that the next lease gets another
        // message.
        if ended == "release" {
            fixture
                .owner
                .run("SELECT idem_configure_retries('orders', 3, '0', 1, '1 day')")
                .await?;
            consumer.run(&format!("SELECT public.{end}")).await?;
            fixture
                .owner
                .run(
                    "UPDATE idem.pending_0 SET order_key = id WHERE order_key = 'k';
                     UPDATE idem.pending_0 SET due_at = now() + '1 hour' WHERE id = 'm1'",
                )
                .await?;
        } else {
            consumer.run(&format!("SELECT public.{end}")).await?;
            fixture
                .owner
                .run(
                    "UPDATE idem.pending_0 SET due_at = now()
                      WHERE id = 'm1' AND due_at < 'infinity'",
                )
                .await?;
        }
    }
    let rejected = "'orders', '1', 'refused', '{}', 'k', 'T', 'text/plain', 'queue'";
    assert_eq!(
        consumer
            .text(&format!(
                "SELECT public.idem_reject(NULL::pg_catalog.text, {rejected}),
                        public.idem_reject(pg_catalog.gen_random_uuid(), {rejected})"
            ))
            .await?,
        "t|t"
    );
    assert_eq!(
        consumer
            .text(
                "SELECT outcome FROM public.idem_acquire('m4'::pg_catalog.text, 'orders',
                     '1 minute')"
            )
            .await?,
        "acquired"
    );
    assert_eq!(
        consumer
            .refused("SELECT public.idem_extend('m4'::pg_catalog.text, 'orders', 0)")
            .await?
            .sqlstate,
        "55000"
    );

    let operator = fixture.hostile("operator").await?;
    for view in [
        "leases",
        "waiting_claims",
        "waiting_messages",
        "dead_letters",
    ] {
        operator.run(&format!("SELECT * FROM idem.{view}")).await?;
    }
    for (call, result) in [
        (
            "idem_requeue('m1'::pg_catalog.text, 'orders')".to_owned(),
            "t",
        ),
        (format!("idem_requeue({uuid}, 'orders')"), "f"),
        (
            "idem_discard('m1'::pg_catalog.text, 'orders')".to_owned(),
            "f",
        ),
        (format!("idem_discard({uuid}, 'orders')"), "f"),
        ("idem_requeue_all('orders', 'no%', 10)".to_owned(), "0"),
        ("idem_discard_all('orders', 'no%', 10)".to_owned(), "0"),
        (
            "idem_forward_all('orders', 'topic', 'no%', 10)".to_owned(),
            "0",
        ),
        (
            "idem_forward('m1'::pg_catalog.text, 'orders', 'topic')".to_owned(),
            "NULL",
        ),
        (format!("idem_forward({uuid}, 'orders', 'topic')"), "NULL"),
    ] {
        assert_eq!(
            operator.text(&format!("SELECT public.{call}")).await?,
            result,
            "{call}"
        );
    }
    operator.run("SELECT * FROM public.idem_health()").await?;
    Ok(())
}

/// I9: the functions of a relay look up no name in the search_path of the caller.
#[tokio::test]
async fn i9_relay_functions_look_up_no_name() -> Result<()> {
    let fixture = Fixture::new("hostile_relay").await?;
    fixture
        .owner
        .run(
            r#"SELECT idem_try_record('m1', 'orders',
                   '[{"topic": "a", "payload": 1}, {"topic": "b", "payload": 2},
                   {"topic": "later", "payload": 3, "deliver_after": "2100-01-01T00:00:00Z"}]')"#,
        )
        .await?;
    let session = fixture.hostile("relay").await?;
    assert_eq!(
        session
            .text("SELECT public.idem_relay_wait(0) IS NULL")
            .await?,
        "f"
    );
    let batch = session
        .text(
            "SELECT token, message_id, topic, source_destination
               FROM public.idem_relay_next('default', 0, 10, '1 minute')",
        )
        .await?;
    let rows: Vec<Vec<&str>> = batch
        .lines()
        .map(|line| line.split('|').collect())
        .collect();
    assert_eq!(
        rows.iter().map(|row| (row[2], row[3])).collect::<Vec<_>>(),
        [("a", "orders"), ("b", "orders")]
    );
    assert_eq!(
        session
            .text("SELECT public.idem_relay_partitions('default')")
            .await?,
        "1"
    );
    let message_id = rows[0][1];
    let token = session
        .text(&format!(
            "SELECT public.idem_relay_extend('default', 0, {})",
            rows[0][0]
        ))
        .await?;
    session
        .run(&format!(
            "SELECT public.idem_relay_park('default', 0, {token}, '{message_id}', 'refused')"
        ))
        .await?;
    session
        .run(&format!(
            "SELECT public.idem_relay_ack('default', 0, {token})"
        ))
        .await?;
    assert_eq!(
        session
            .refused(&format!(
                "SELECT public.idem_relay_ack('default', 0, {token})"
            ))
            .await?
            .sqlstate,
        "55000"
    );
    assert_eq!(
        session
            .refused("SELECT public.idem_relay_next('unknown')")
            .await?
            .sqlstate,
        "42704"
    );
    assert_eq!(
        fixture
            .owner
            .text("SELECT delayed, parked FROM idem.relays")
            .await?,
        "1|1"
    );
    fixture
        .owner
        .run("SELECT idem_send('billing', '1'::jsonb)")
        .await?;
    assert_eq!(
        session
            .text("SELECT public.idem_hand_over('default', ARRAY[pg_catalog.text 'billing'])")
            .await?,
        "1"
    );
    assert_eq!(
        fixture
            .owner
            .text("SELECT waiting FROM idem.waiting_messages")
            .await?,
        "1"
    );
    Ok(())
}

/// I9: the functions and views of a monitor and an admin look up no name in the search_path of the
/// caller.
#[tokio::test]
async fn i9_monitor_and_admin_functions_look_up_no_name() -> Result<()> {
    let fixture = Fixture::new("hostile_admin").await?;
    fixture
        .owner
        .run(r#"SELECT idem_try_record('m1', 'orders', '{"topic": "a", "payload": 1}')"#)
        .await?;
    let app = fixture.db.role("app").await?;
    let admin = fixture.hostile("admin").await?;
    for call in [
        "idem_configure('orders', '30 minutes')",
        "idem_configure('others', '1 day')",
        "idem_set_retention('short', '1 hour')",
        "idem_create_relay('second', 3, true)",
        "idem_drop_relay('second')",
        "idem_relay_unpark('default', '0192f3a4-0000-7abc-8def-0123456789ab')",
        "idem_relay_unpark_all('default')",
        "idem_relay_discard('default', '0192f3a4-0000-7abc-8def-0123456789ab')",
        "idem_relay_discard_all('default', 'no%')",
        "idem_repair_relays()",
        "idem_finish_restore()",
        "idem_new_installation()",
        "idem_health()",
        "idem_configure_retries('orders', 3, '1 second', 2, '1 minute', 0.5,
                                ARRAY['no%'::pg_catalog.text])",
        "idem_forget('m1'::pg_catalog.text, 'orders')",
        "idem_configure('unused', '1 day')",
        "idem_remove_destination('unused')",
        "idem_set_message_identity('id_and_destination')",
    ] {
        admin.run(&format!("SELECT public.{call}")).await?;
    }
    for kind in [
        "consumer", "receiver", "relay", "operator", "monitor", "admin",
    ] {
        admin
            .run(&format!("SELECT public.idem_grant('{app}', '{kind}')"))
            .await?;
    }
    for kind in [
        "consumer", "receiver", "relay", "operator", "monitor", "admin",
    ] {
        admin
            .run(&format!("SELECT public.idem_revoke('{app}', '{kind}')"))
            .await?;
    }
    assert_eq!(
        admin
            .refused("SELECT public.idem_configure('orders', '1 year')")
            .await?
            .sqlstate,
        "22023"
    );

    // Execute every step of a rotation.
    admin
        .run(
            "SELECT public.idem_configure('orders', '1 day');
             SELECT public.idem_set_retention('short', '100 milliseconds')",
        )
        .await?;
    until("the ring has rotated five times", async || {
        admin.run("CALL public.idem_maintain()").await?;
        Ok(fixture
            .owner
            .text(
                "SELECT rotations >= 5 AND phase = 'steady' FROM idem.ring
                  WHERE name = 'short'",
            )
            .await?
            == "t")
    })
    .await?;

    let monitor = fixture.hostile("monitor").await?;
    for session in [&admin, &monitor] {
        for view in [
            "inbox",
            "outbox",
            "rings",
            "relays",
            "stats",
            "leases",
            "waiting_claims",
            "waiting_messages",
            "parked",
        ] {
            session.run(&format!("SELECT * FROM idem.{view}")).await?;
        }
        session.run("SELECT * FROM public.idem_health()").await?;
    }
    Ok(())
}

/// I9: every function that runs with the rights of its owner has a fixed search_path.
#[tokio::test]
async fn i9_security_definer_functions_have_a_fixed_path() -> Result<()> {
    let db = Database::with_idem("fixed_path").await?;
    let session = db.connect().await?;
    let functions = "FROM pg_proc f JOIN pg_language l ON l.oid = f.prolang
        JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e'
        JOIN pg_extension x ON d.refclassid = 'pg_extension'::regclass AND x.oid = d.refobjid
         AND x.extname = 'idem'";
    let no_fixed_path =
        "NOT ('search_path=pg_catalog, pg_temp' = ANY (COALESCE(f.proconfig, '{}')))";
    assert_eq!(
        session
            .text(&format!(
                "SELECT f.oid::regprocedure {functions} WHERE f.prosecdef AND {no_fixed_path}"
            ))
            .await?,
        ""
    );
    // Functions in C need no fixed search_path, because they look up names by schema. The procedure
    // `idem_maintain` commits, which PostgreSQL does not allow in a procedure with a fixed
    // search_path.
    assert_eq!(
        session
            .text(&format!(
                "SELECT f.oid::regprocedure {functions}
                  WHERE l.lanname <> 'c' AND f.prosqlbody IS NULL AND {no_fixed_path}"
            ))
            .await?,
        "idem_maintain()"
    );
    Ok(())
}

/// A database with traps in the schema evil, into which the extension can be installed: the objects
/// of `hostile.sql` and `overloads.sql`.
async fn with_hostile_schema(name: &str) -> Result<(Database, Session)> {
    let db = Database::empty(name).await?;
    let session = db.connect().await?;
    // Both scripts read names from the installed extension.
    session.run("CREATE EXTENSION idem").await?;
    session.run(TRAPS).await?;
    session
        .run(
            "DROP EXTENSION idem;
             DROP TYPE evil.idem_outcome, evil.idem_effect, evil.idem_call_state,
                       evil.idem_lease_outcome;
             CREATE EXTENSION idem SCHEMA evil",
        )
        .await?;
    session.run(OVERLOADS).await?;
    session.run("DROP EXTENSION idem").await?;
    Ok((db, session))
}

/// The overloads detect a name that is not qualified, and objects that use a trap are found. This
/// shows that the next test can fail. CREATE EXTENSION also runs its script with the schema of the
/// extension in search_path, after pg_catalog.
#[tokio::test]
async fn overloads_detect_a_name_look_up() -> Result<()> {
    let (_db, session) = with_hostile_schema("overloads").await?;
    session.run("SET search_path = evil").await?;
    for careless in [
        "SELECT cardinality('{1}'::int2[])",
        "SELECT format('%s', 'a'::text)",
        "SELECT convert_to('a'::text, 'UTF8')",
        "SELECT make_interval(secs => 1)",
        "SELECT 'a' || 1",
        "SELECT CASE 1::oid WHEN 0 THEN 1 END",
        "SELECT '1'::jsonb ->> '1'",
        "SELECT idem_acquire('m1'::text, 'orders'::text, '1 minute')",
    ] {
        assert_eq!(
            session.refused(careless).await?.sqlstate,
            "EVIL0",
            "{careless}"
        );
    }
    // The error of the trap for VARIADIC "any".
    let careless = "SELECT jsonb_build_array('a'::text, 'b'::text, 1)";
    assert_eq!(session.refused(careless).await?.sqlstate, "0A000");
    session
        .run(
            "CREATE TABLE public.careless (a int2[] CHECK (cardinality(a) > 0),
                                           b text DEFAULT 'a' || 1);
             CREATE VIEW public.careless_view AS SELECT '1'::jsonb ->> '1' AS a;
             CREATE FUNCTION public.careless(a text) RETURNS bytea LANGUAGE sql
                 RETURN convert_to(a, 'UTF8');
             CREATE FUNCTION public.careless(a oid) RETURNS text LANGUAGE sql
             BEGIN ATOMIC
                 SELECT CASE a WHEN 0 THEN 'none' END;
             END;
             SET search_path = pg_catalog",
        )
        .await?;
    assert_eq!(
        session
            .text("SELECT c.use FROM public.captured c ORDER BY c.use")
            .await?,
        "constraint careless_a_check on table public.careless uses function \
             evil.cardinality(smallint[])\n\
         default value for column b of table public.careless uses operator evil.||(text,integer)\n\
         function public.careless(oid) uses operator evil.=(oid,integer)\n\
         function public.careless(text) uses function evil.convert_to(text,text)\n\
         rule _RETURN on view public.careless_view uses operator evil.->>(jsonb,jsonb)"
    );
    assert_eq!(
        session
            .text("SELECT last_value > 1 FROM public.trap_calls")
            .await?,
        "t"
    );
    Ok(())
}

/// I9: CREATE EXTENSION does not execute objects that another role has created in the schema of the
/// extension. No object of the extension uses them, and no function executes them.
#[tokio::test]
async fn i9_installation_executes_no_trap() -> Result<()> {
    let (_db, session) = with_hostile_schema("install").await?;
    session.run("SET search_path = pg_catalog").await?;
    session.run("CREATE EXTENSION idem SCHEMA evil").await?;
    assert_eq!(
        session
            .text("SELECT c.use FROM public.captured c ORDER BY c.use")
            .await?,
        ""
    );
    // The functions that call other functions of this schema. The calls have all arguments with
    // their types, because a trap matches any other call better.
    for (call, result) in [
        ("idem_try_claim('m1'::text, 'orders'::text)", "t"),
        (
            "idem_reject('m2'::text, 'orders'::text, ''::bytea, 'no'::text, NULL::jsonb,
                         NULL::text, NULL::text, NULL::text, NULL::text)",
            "t",
        ),
        (
            "idem_reject('0192f3a4-0000-7abc-8def-0123456789ab'::uuid, 'orders'::text, ''::bytea,
                         'no'::text, NULL::jsonb, NULL::text, NULL::text, NULL::text,
                         NULL::text)",
            "t",
        ),
        ("idem_discard('m2'::text, 'orders'::text)", "t"),
        (
            "idem_forward('0192f3a4-0000-7abc-8def-0123456789ab'::uuid, 'orders'::text,
                          'mail'::text) IS NULL",
            "f",
        ),
        (
            "idem_hand_over('default'::text, ARRAY['mail'], 0, 10, 16777216::bigint)",
            "1",
        ),
    ] {
        assert_eq!(
            session
                .text(&format!("SELECT evil.{call}"))
                .await
                .with_context(|| call.to_owned())?,
            result,
            "{call}"
        );
    }
    assert_eq!(
        session
            .text(
                "SELECT count(*) > 4 FROM evil.idem_health();
                 SELECT count(*) FROM evil.idem_relay_next('default'::text, 0, 1,
                                                           '1 minute'::interval, 1::bigint)"
            )
            .await?,
        "t\n0"
    );
    // idem_maintain has no search_path of its own.
    session.run("SET search_path = evil").await?;
    session.run("CALL evil.idem_maintain()").await?;
    assert_eq!(
        session
            .text(
                "SELECT is_called FROM public.trap_calls;
                 SELECT count(*) FROM idem.maintenance_error"
            )
            .await?,
        "f\n0"
    );
    Ok(())
}
