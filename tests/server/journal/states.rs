//! Tests of every state of a call and of every transition between states.

use anyhow::{Result, ensure};
use idem_testkit::{Database, FIX_INSTALLATION, Session};

use super::{LEVELS, begin, calls, fail, finish};

/// An operation on a call, in a transaction of its own.
#[derive(Clone, Copy, Debug)]
enum Act {
    Begin,
    Finish,
    /// Takes back an attempt that certainly had no effect.
    TakeBack,
    /// Records that the attempt failed permanently.
    Refuse,
}
use Act::*;

async fn act(session: &Session, act: Act) -> Result<()> {
    match act {
        Begin => begin(session, "m").await.map(drop),
        Finish => finish(session, "m", r#"{"paid": 1}"#).await,
        TakeBack => fail(session, "m", "connection refused", true).await,
        Refuse => fail(session, "m", "card declined", false).await,
    }
}

#[tokio::test]
async fn call_changes_its_state_at_every_isolation_level() -> Result<()> {
    // Each entry has the operations, the result of the next begin, and the call as `idem_calls`
    // returns it before that begin.
    let histories: &[(&[Act], &str, &str)] = &[
        (&[], "new|1", ""),
        (&[Begin], "unknown|2", "charge|unknown|1|NULL|NULL"),
        (&[Begin, Begin], "unknown|3", "charge|unknown|2|NULL|NULL"),
        (
            &[Begin, Finish],
            "done|1",
            r#"charge|done|1|{"paid": 1}|NULL"#,
        ),
        (
            &[Begin, Finish, Finish],
            "done|1",
            r#"charge|done|1|{"paid": 1}|NULL"#,
        ),
        (
            &[Begin, Finish, Begin],
            "done|1",
            r#"charge|done|1|{"paid": 1}|NULL"#,
        ),
        (
            &[Begin, Begin, Finish],
            "done|2",
            r#"charge|done|2|{"paid": 1}|NULL"#,
        ),
        (
            &[Begin, TakeBack],
            "new|2",
            "charge|new|1|NULL|connection refused",
        ),
        (
            &[Begin, TakeBack, TakeBack],
            "new|2",
            "charge|new|1|NULL|connection refused",
        ),
        (
            &[Begin, TakeBack, Begin],
            "unknown|3",
            "charge|unknown|2|NULL|NULL",
        ),
        (
            &[Begin, TakeBack, Begin, Finish],
            "done|2",
            r#"charge|done|2|{"paid": 1}|NULL"#,
        ),
        (
            &[Begin, Refuse],
            "failed|1",
            "charge|failed|1|NULL|card declined",
        ),
        (
            &[Begin, Refuse, Refuse],
            "failed|1",
            "charge|failed|1|NULL|card declined",
        ),
        (
            &[Begin, Begin, Refuse],
            "failed|2",
            "charge|failed|2|NULL|card declined",
        ),
        // The second attempt is taken back. The result of the first attempt stays unknown.
        (
            &[Begin, Begin, TakeBack],
            "unknown|3",
            "charge|unknown|2|NULL|NULL",
        ),
        // The second attempt is taken back twice, as by a client that does not know whether its
        // first commit succeeded.
        (
            &[Begin, Begin, TakeBack, TakeBack],
            "unknown|3",
            "charge|unknown|2|NULL|NULL",
        ),
    ];
    for level in LEVELS {
        let db = Database::with_idem("states").await?;
        let session = db.connect().await?;
        session
            .run(&format!(
                "SET default_transaction_isolation = '{}'",
                level.to_lowercase()
            ))
            .await?;
        for (acts, next, shown) in histories {
            for &it in *acts {
                act(&session, it).await?;
            }
            assert_eq!(calls(&session, "m").await?, *shown, "{level}: {acts:?}");
            assert_eq!(begin(&session, "m").await?, *next, "{level}: {acts:?}");
            forget_everything(&session).await?;
        }
    }
    Ok(())
}

/// Removes every call with TRUNCATE, as the rotation of the ring does.
async fn forget_everything(session: &Session) -> Result<()> {
    let tables = "SELECT string_agg('idem.call_standard_' || n, ', ')
                    FROM unnest(idem.slice_numbers(1::int2)) n";
    let tables = session.text(tables).await?;
    session.run(&format!("TRUNCATE {tables}")).await
}

/// A call that has not begun or that has ended with another result cannot be finished or failed,
/// and nothing is written.
#[tokio::test]
async fn call_that_has_not_begun_or_has_ended_cannot_be_ended() -> Result<()> {
    let db = Database::with_idem("refusals").await?;
    let session = db.connect().await?;
    let finish = "SELECT idem_finish_call('m', 'orders', 'charge', '2')";
    let take_back = "SELECT idem_fail_call('m', 'orders', 'charge', 'reset by peer')";
    let refuse =
        "SELECT idem_fail_call('m', 'orders', 'charge', 'no such card', retryable => false)";
    let ended = |how| format!("the call \"charge\" of this message has already ended: it is {how}");
    let none = "no attempt at the call \"charge\" of this message is under way".to_owned();
    for (acts, message) in [
        (&[][..], none.clone()),
        (&[Begin, TakeBack], none),
        (&[Begin, Finish], ended("done")),
        (&[Begin, Refuse], ended("failed")),
    ] {
        for it in acts {
            act(&session, *it).await?;
        }
        let before = calls(&session, "m").await?;
        for late in [finish, take_back, refuse] {
            let refusal = session.refused(late).await?;
            assert_eq!(
                (refusal.sqlstate.as_str(), &refusal.message),
                ("55000", &message),
                "{acts:?}: {late}"
            );
            ensure!(!refusal.hint.is_empty(), "{refusal:?}");
        }
        assert_eq!(calls(&session, "m").await?, before, "{acts:?}");
        forget_everything(&session).await?;
    }
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem.destination WHERE name = 'never seen'")
            .await?,
        "0"
    );
    assert_eq!(
        session
            .refused("SELECT idem_finish_call('m', 'never seen', 'charge')")
            .await?
            .sqlstate,
        "55000"
    );
    Ok(())
}

#[tokio::test]
async fn i3_response_is_returned_byte_for_byte() -> Result<()> {
    let db = Database::with_idem("responses").await?;
    let session = db.connect().await?;
    let large = format!(
        r#"{{"lines": ["{}"], "n": 1.10}}"#,
        "é\\u0001ß ".repeat(50_000)
    );
    for (n, response) in [
        "null".to_owned(),
        r#""""#.to_owned(),
        "[]".to_owned(),
        "1.10".to_owned(),
        "123456789012345678901234567890.000000000000000000010".to_owned(),
        r#"{"b": 1, "a": {"z": [true, null, "\u00e9\n"]}, "": 0}"#.to_owned(),
        r#"{"twice": 1, "twice":  2}"#.to_owned(),
        r#""a\u0000b""#.to_owned(),
        r#""half of a pair: \ud83e""#.to_owned(),
        large,
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("m{n}");
        session
            .query(
                "SELECT idem_begin_call($1::text, 'orders', 'charge')",
                &[&id],
            )
            .await?;
        session
            .query(
                "SELECT idem_finish_call($1::text, 'orders', 'charge', $2::text::json)",
                &[&id, &response],
            )
            .await?;
        let row = session
            .query_one(
                "SELECT b.response::text = $2::text, c.response::text = $2::text
                   FROM idem_begin_call($1::text, 'orders', 'charge') b,
                   idem_calls($1::text, 'orders') c",
                &[&id, &response],
            )
            .await?;
        assert_eq!(
            (row.get(0), row.get(1)),
            (Some(true), Some(true)),
            "{response:.80}"
        );
    }
    session
        .run(
            "SELECT idem_begin_call('none', 'orders', 'charge'); \
             SELECT idem_finish_call('none', 'orders', 'charge')",
        )
        .await?;
    assert_eq!(
        session
            .text("SELECT state, response FROM idem_begin_call('none', 'orders', 'charge')")
            .await?,
        "done|NULL"
    );
    Ok(())
}

#[tokio::test]
async fn permanent_failure_returns_its_error() -> Result<()> {
    let db = Database::with_idem("errors").await?;
    let session = db.connect().await?;
    let error = "declined: \"insufficient\nfunds\" \\ é";
    session
        .run("SELECT idem_begin_call('m', 'orders', 'charge', '{\"amount\": 5}')")
        .await?;
    session
        .query(
            "SELECT idem_fail_call('m'::text, 'orders', 'charge', $1, false)",
            &[&error],
        )
        .await?;
    let row = session
        .query_one(
            "SELECT state::text, error, response IS NULL \
             FROM idem_begin_call('m'::text, 'orders', 'charge', '{\"amount\": 5}')",
            &[],
        )
        .await?;
    assert_eq!(
        (row.get::<_, &str>(0), row.get::<_, &str>(1), row.get(2)),
        ("failed", error, true)
    );
    Ok(())
}

#[tokio::test]
async fn other_request_for_the_same_step_fails_in_every_state() -> Result<()> {
    let db = Database::with_idem("requests").await?;
    let session = db.connect().await?;
    let begin = |id: &str, request: &str| {
        format!("SELECT state FROM idem_begin_call('{id}', 'orders', 'charge', {request})")
    };
    for (id, first, then) in [
        ("unknown", r#"'{"amount": 5, "to": "x"}'"#, ""),
        (
            "done",
            r#"'{"amount": 5, "to": "x"}'"#,
            "SELECT idem_finish_call('done', 'orders', 'charge', '1')",
        ),
        (
            "failed",
            r#"'{"amount": 5, "to": "x"}'"#,
            "SELECT idem_fail_call('failed', 'orders', 'charge', 'e', false)",
        ),
        (
            "new",
            r#"'{"amount": 5, "to": "x"}'"#,
            "SELECT idem_fail_call('new', 'orders', 'charge', 'e')",
        ),
    ] {
        assert_eq!(session.text(&begin(id, first)).await?, "new");
        session.run(then).await?;
        let before = calls(&session, id).await?;
        for other in [r#"'{"amount": 6, "to": "x"}'"#, "NULL", "'null'"] {
            let refusal = session.refused(&begin(id, other)).await?;
            assert_eq!(refusal.sqlstate, "23000", "{id} {other}: {refusal:?}");
            ensure!(!refusal.hint.is_empty(), "{refusal:?}");
        }
        assert_eq!(calls(&session, id).await?, before);
        // jsonb does not keep the order of members, so this is the same request.
        assert_eq!(
            session
                .text(&begin(id, r#"'{"to":"x","amount":5}'"#))
                .await?,
            id
        );
    }
    assert_eq!(session.text(&begin("none", "NULL")).await?, "new");
    assert_eq!(
        session.refused(&begin("none", "'1'")).await?.sqlstate,
        "23000"
    );
    assert_eq!(session.text(&begin("none", "NULL")).await?, "unknown");
    Ok(())
}

#[tokio::test]
async fn idempotency_key_depends_on_step_and_not_on_attempt() -> Result<()> {
    let db = Database::with_idem("keys").await?;
    let session = db.connect().await?;
    let key = async |id: &str, destination: &str, step: &str| {
        session
            .text(&format!(
                "SELECT idempotency_key FROM idem_begin_call({id}, '{destination}', '{step}')"
            ))
            .await
    };
    session.run(FIX_INSTALLATION).await?;
    // Every release must derive this key.
    for _attempt in 1..=2 {
        assert_eq!(
            key("'order-1'", "orders", "charge").await?,
            "887efc74-545d-8954-9663-ebee23cbec95"
        );
    }
    let uuid = "'0192f3a4-0000-7abc-8def-0123456789ab'";
    let by_uuid = key(&format!("{uuid}::uuid"), "orders", "charge").await?;
    assert_eq!(
        key(uuid, "orders", "charge").await?,
        by_uuid,
        "a text that spells a uuid is that uuid"
    );
    let mut keys = vec![by_uuid];
    for (id, destination, step) in [
        ("'order-1'", "orders", "charge"),
        ("'order-2'", "orders", "charge"),
        ("'order-1'", "billing", "charge"),
        ("'order-1'", "orders", "mail"),
        ("'order-1'", "orders", "Charge"),
    ] {
        keys.push(key(id, destination, step).await?);
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6, "{keys:?}");
    assert_eq!(
        session
            .text("SELECT step, state, attempt FROM idem_calls('order-1', 'orders')")
            .await?,
        "charge|unknown|3\nmail|unknown|1\nCharge|unknown|1",
        "each step has its own call, in the order in which they began"
    );
    Ok(())
}

#[tokio::test]
async fn begun_at_is_the_start_of_the_first_unknown_attempt() -> Result<()> {
    let db = Database::with_idem("since").await?;
    let session = db.connect().await?;
    let begun_at = async || {
        session
            .text("SELECT begun_at FROM idem_begin_call('m', 'orders', 'charge')")
            .await
    };
    let first = begun_at().await?;
    fail(&session, "m", "reset", true).await?;
    let second = begun_at().await?;
    ensure!(
        first < second,
        "{first} {second}: an attempt that was taken back does not count"
    );
    assert_eq!(begun_at().await?, second);
    finish(&session, "m", "1").await?;
    assert_eq!(begun_at().await?, second);
    assert_eq!(
        session
            .text(&format!(
                "SELECT begun_at = '{second}', ended_at > begun_at FROM idem_calls('m', 'orders')"
            ))
            .await?,
        "t|t"
    );
    Ok(())
}

#[tokio::test]
async fn ended_call_is_returned_without_a_transaction_id() -> Result<()> {
    let db = Database::with_idem("no_xid").await?;
    let session = db.connect().await?;
    for id in ["done", "failed"] {
        begin(&session, id).await?;
    }
    finish(&session, "done", "7").await?;
    fail(&session, "failed", "e", false).await?;
    for level in LEVELS {
        for (function, expected) in [
            (
                "(idem_begin_call('done', 'orders', 'charge')).state",
                "done",
            ),
            (
                "(idem_begin_call('failed', 'orders', 'charge')).state",
                "failed",
            ),
            ("idem_finish_call('done', 'orders', 'charge', '7')", ""),
            (
                "idem_fail_call('failed', 'orders', 'charge', 'e', false)",
                "",
            ),
            ("(idem_calls('done', 'orders')).state", "done"),
        ] {
            let result = session
                .text(&format!(
                    "BEGIN ISOLATION LEVEL {level}; SELECT {function}; \
                     SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"
                ))
                .await?;
            assert_eq!(result, format!("{expected}\nt"), "{level}: {function}");
        }
    }
    Ok(())
}

/// With the message identity `id` a message has the same identity in both destinations, so the
/// second destination must not repeat a request of the first destination.
#[tokio::test]
async fn message_identity_id_gives_destinations_one_journal() -> Result<()> {
    let db = Database::with_idem("one_journal").await?;
    let session = db.connect().await?;
    session
        .run("SELECT idem_set_message_identity('id')")
        .await?;
    let begin = async |destination: &str| {
        session
            .text(&format!(
                "SELECT state, idempotency_key FROM idem_begin_call('m', '{destination}', 'charge')"
            ))
            .await
    };
    let first = begin("orders").await?;
    let second = begin("billing").await?;
    assert_eq!(
        first.strip_prefix("new|"),
        second.strip_prefix("unknown|"),
        "{first} {second}"
    );
    session
        .run("SELECT idem_finish_call('m', 'billing', 'charge', '7')")
        .await?;
    assert_eq!(
        session
            .text("SELECT state, response FROM idem_calls('m', 'orders')")
            .await?,
        "done|7"
    );
    Ok(())
}
