//! Tests of handlers that execute COMMIT or ROLLBACK themselves, or change the role or the
//! search_path. Nothing of such a transaction is committed, and its message is never acknowledged.

use std::sync::Mutex;

use deadpool_postgres::{Manager, Pool};
use futures_util::FutureExt;
use idem_client::{Effect, Error as Call};
use idem_runtime::{
    Error, Handled, HandlerError, Idem, Message, Policies, Processed, Settlement, Tx,
    policy::{MissingId, Policy, Store, Style},
};
use tokio_postgres::{Client, Config, NoTls, types::Type};

use crate::fixtures::{
    DESTINATION, Fixture, fact, idem, insert, message, preparing, preparing_idem, work,
};

/// The rules for every form of a transaction: both styles, and a transaction without a claim.
const RULES: [fn(&mut Policy); 3] = [
    |policy| policy.style = Style::Eager,
    |policy| policy.style = Style::Reactive,
    |policy| policy.store = Store::Memory,
];

/// The statements that commit a transaction.
const COMMITS: [&str; 4] = ["COMMIT", "END", "COMMIT AND CHAIN", "COMMIT; BEGIN"];

/// How a handler ends its transaction, if the runtime notices it only after the handler.
#[derive(Clone, Copy, Debug)]
enum End {
    Rollback,
    /// The handler ends the transaction and begins another one.
    RollbackAndBegin,
    /// Like `RollbackAndBegin`. The handler also commits the other transaction.
    RollbackAndCommit,
}

const ENDS: [End; 3] = [End::Rollback, End::RollbackAndBegin, End::RollbackAndCommit];

impl End {
    async fn execute(self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let sql = match self {
            Self::Rollback => "ROLLBACK",
            Self::RollbackAndBegin => "ROLLBACK; BEGIN",
            Self::RollbackAndCommit => "ROLLBACK; BEGIN; INSERT INTO own VALUES (1); COMMIT",
        };
        client.batch_execute(sql).await
    }

    /// Returns whether statements after this end take effect by themselves.
    fn is_outside(self) -> bool {
        matches!(self, Self::Rollback | Self::RollbackAndCommit)
    }
}

/// A handler that inserts a row, ends its transaction, and returns `effects` effects.
async fn ending(tx: Tx, message: Message, end: End, effects: usize) -> Handled {
    insert(&tx, &message).await?;
    end.execute(&tx).await?;
    Ok((0..effects).map(|_| fact()).collect())
}

/// A handler that inserts a row, executes a form of COMMIT, and returns its error.
async fn committing(tx: Tx, message: Message, commit: &str) -> Handled {
    insert(&tx, &message).await?;
    tx.batch_execute(commit).await?;
    Ok(vec![fact()])
}

/// Inserts a row, executes COMMIT, and ignores the error of the server.
async fn ignoring(tx: &Tx, message: &Message) {
    insert(tx, message).await.unwrap();
    let error = tx.batch_execute("COMMIT").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "2D000", "{error:?}");
}

fn assert_retried_for_failed_statement(processed: Result<Processed, Error>, what: &str) {
    let error = processed.expect_err(what);
    let state = error.sqlstate().map(|state| state.code());
    assert_eq!(state, Some("25P02"), "{what}: {error:?}");
    assert!(
        matches!(error.settlement(), Settlement::Retry { .. }),
        "{what}: {error:?}"
    );
}

fn assert_never_acknowledged(processed: Result<Processed, Error>, what: &str) {
    let error = processed.expect_err(what);
    assert!(
        matches!(error, Error::Client(Call::TransactionEnded)),
        "{what}: {error:?}"
    );
    let Settlement::Reject { reason } = error.settlement() else {
        panic!("{what}: {:?}", error.settlement());
    };
    assert!(reason.contains("was ended before its commit"), "{reason}");
}

fn assert_rejected_for_commit(processed: Result<Processed, Error>, what: &str) {
    let error = processed.expect_err(what);
    let Settlement::Reject { reason } = error.settlement() else {
        panic!("{what}: {error:?}");
    };
    assert!(reason.contains("2D000: COMMIT"), "{what}: {reason}");
}

/// Asserts that the message has left nothing, and that it is handled at its next delivery.
async fn assert_handled_next(fixture: &Fixture, message: &Message, what: &str) {
    fixture.assert_untouched(message).await;
    let processed = Idem::new().process(&fixture.pool, message, work).await;
    assert!(
        matches!(processed, Ok(Processed::New { .. })),
        "{what}: {processed:?}"
    );
    fixture.assert_done_once(message).await;
}

/// Creates a fixture with a table for the handler's second transaction.
async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    let table = "CREATE TABLE own (n int)";
    fixture.observer.batch_execute(table).await.unwrap();
    fixture
}

fn with_rule(rule: fn(&mut Policy), prepared: bool) -> Idem {
    let policies = Policies::default().default_rule(|policy| {
        rule(policy);
        policy.missing_id = MissingId::Unprotected;
    });
    Idem::builder()
        .policies(policies)
        .prepared_statements(prepared)
        .build()
        .unwrap()
}

/// Returns whether the rule has no claim in the database.
fn is_memory(rule: fn(&mut Policy)) -> bool {
    let mut policy = Policy::default();
    rule(&mut policy);
    policy.store == Store::Memory
}

/// Returns the number of rows of messages with and without an id, and of effects.
async fn traces(fixture: &Fixture) -> (i64, i64) {
    (
        fixture.count("SELECT count(*) FROM work").await,
        fixture.count("SELECT count(*) FROM idem.outbox_row").await,
    )
}

/// I2: the server rejects each form of COMMIT in each form of a transaction. The message is
/// rejected, and is handled when it is delivered again.
#[tokio::test]
async fn i2_commit_of_a_handler_commits_nothing() {
    let fixture = Fixture::new().await;
    for (rule, commit) in RULES
        .into_iter()
        .flat_map(|rule| COMMITS.map(|commit| (rule, commit)))
    {
        let idem = with_rule(rule, false);
        for message in [message(), Message::new(DESTINATION, "{}")] {
            let before = traces(&fixture).await;
            let processed = idem.process(&fixture.pool, &message, |tx, message| {
                committing(tx, message, commit)
            });
            let what = format!("{idem:?}, {commit}, {message:?}");
            assert_rejected_for_commit(processed.await, &what);
            assert_eq!(traces(&fixture).await, before, "{what}");
            if message.message_id().is_some() {
                assert_handled_next(&fixture, &message, &what).await;
            }
        }
    }
    fixture.until_quiet().await;
}

/// I2: a savepoint of the handler, whether it is rolled back to, released or left open, does not
/// allow COMMIT, and does not prevent the commit of the runtime.
#[tokio::test]
async fn i2_savepoints_do_not_allow_commit() {
    let fixture = Fixture::new().await;
    for savepoint in [
        "SAVEPOINT a",
        "SAVEPOINT a; RELEASE a",
        "SAVEPOINT a; ROLLBACK TO a",
    ] {
        let message = message();
        let idem = Idem::new();
        let processed = idem.process(&fixture.pool, &message, async |tx: Tx, message| {
            tx.batch_execute(savepoint).await?;
            committing(tx, message, "COMMIT").await
        });
        assert_rejected_for_commit(processed.await, savepoint);
        fixture.assert_untouched(&message).await;
        let processed = idem.process(&fixture.pool, &message, async |tx: Tx, message| {
            tx.batch_execute(savepoint).await?;
            work(tx, message).await
        });
        let processed = processed.await;
        assert!(
            matches!(processed, Ok(Processed::New { .. })),
            "{savepoint}: {processed:?}"
        );
        fixture.assert_done_once(&message).await;
    }
}

/// I2: a handler that ignores the error of its COMMIT has a failed transaction. Its later
/// statements fail, nothing is committed, and the message is retried.
#[tokio::test]
async fn i2_ignored_error_of_a_commit_commits_nothing() {
    let fixture = Fixture::new().await;
    for (rule, effects) in RULES.into_iter().flat_map(|rule| [(rule, 0), (rule, 1)]) {
        let idem = with_rule(rule, false);
        for message in [message(), Message::new(DESTINATION, "{}")] {
            let before = traces(&fixture).await;
            let processed = idem.process(&fixture.pool, &message, async |tx: Tx, message| {
                ignoring(&tx, &message).await;
                Ok((0..effects).map(|_| fact()).collect())
            });
            let what = format!("{idem:?}, {effects} effects, {message:?}");
            assert_retried_for_failed_statement(processed.await, &what);
            assert_eq!(traces(&fixture).await, before, "{what}");
            if message.message_id().is_some() {
                assert_handled_next(&fixture, &message, &what).await;
            }
        }
    }
    fixture.until_quiet().await;
}

/// I2, I10: a handler that ends its transaction and returns no error is an error of the message, in
/// each form of the transaction. Nothing is committed but what is executed after the end: the
/// second transaction of the handler, and the effects of a message without a claim.
#[tokio::test]
async fn i10_handler_that_ends_its_transaction_is_rejected() {
    let fixture = fixture().await;
    for &prepared in preparing() {
        for (rule, end) in RULES
            .into_iter()
            .flat_map(|rule| ENDS.map(|end| (rule, end)))
        {
            let idem = with_rule(rule, prepared);
            for effects in [0, 2] {
                for message in [message(), Message::new(DESTINATION, "{}")] {
                    let (rows, sent) = traces(&fixture).await;
                    let own = fixture.count("SELECT count(*) FROM own").await;
                    let processed = idem.process(&fixture.pool, &message, |tx, message| {
                        ending(tx, message, end, effects)
                    });
                    let what = format!("{idem:?}, {end:?}, {effects} effects, {message:?}");
                    assert_never_acknowledged(processed.await, &what);
                    let is_unprotected = message.message_id().is_none() || is_memory(rule);
                    let sends = match is_unprotected && end.is_outside() {
                        true => effects,
                        false => 0,
                    };
                    let expected = (rows, sent + i64::try_from(sends).unwrap());
                    assert_eq!(traces(&fixture).await, expected, "{what}");
                    let commits = i64::from(matches!(end, End::RollbackAndCommit));
                    let now = fixture.count("SELECT count(*) FROM own").await;
                    assert_eq!(now, own + commits, "{what}");
                    if message.message_id().is_some() {
                        assert_handled_next(&fixture, &message, &what).await;
                    }
                }
            }
        }
    }
    fixture.until_quiet().await;
}

/// I4: a handler that has ended its transaction is rejected for that reason, also if the server
/// rejects its effects.
#[tokio::test]
async fn i4_rejected_effects_do_not_hide_the_end() {
    let fixture = fixture().await;
    let rejected = || Effect::json("", &1).unwrap();
    for style in [Style::Eager, Style::Reactive] {
        let idem = idem(|policy| policy.style = style);
        for end in ENDS {
            let message = message();
            let processed = idem.process(&fixture.pool, &message, async |tx, message| {
                ending(tx, message, end, 0).await?;
                Ok(vec![rejected()])
            });
            let what = format!("{style:?}, {end:?}");
            assert_never_acknowledged(processed.await, &what);
            assert_handled_next(&fixture, &message, &what).await;
        }
        let message = message();
        let processed = idem.process(&fixture.pool, &message, async |tx, message| {
            insert(&tx, &message).await?;
            Ok(vec![rejected()])
        });
        let error = processed.await.unwrap_err();
        assert_eq!(error.sqlstate().unwrap().code(), "22023", "{error:?}");
        fixture.assert_untouched(&message).await;
    }
}

/// A statement of the application that fails with 55000 at COMMIT is no sign that the handler has
/// ended the transaction.
#[tokio::test]
async fn deferred_trigger_with_55000_is_an_error_of_the_database() {
    let fixture = Fixture::new().await;
    fixture
        .observer
        .batch_execute(
            "CREATE FUNCTION reject_row() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE EXCEPTION 'not now' USING ERRCODE = '55000';
             END $$;
             CREATE CONSTRAINT TRIGGER reject_row AFTER INSERT ON work
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION reject_row()",
        )
        .await
        .unwrap();
    let message = message();
    let error = Idem::new()
        .process(&fixture.pool, &message, work)
        .await
        .unwrap_err();
    assert!(
        !matches!(error, Error::Client(Call::TransactionEnded)),
        "{error:?}"
    );
    assert_eq!(
        error.sqlstate().map(|state| state.code()),
        Some("55000"),
        "{error:?}"
    );
    fixture.assert_untouched(&message).await;
}

/// I1: the reactive style claims after the handler has run. If the handler has ended its
/// transaction, the claim would commit without the writes of the handler.
#[tokio::test]
async fn i1_reactive_claim_needs_the_transaction_of_its_handler() {
    let fixture = fixture().await;
    let allow = format!(
        "ALTER DATABASE {} SET idem.lone_claims = 'allow'",
        fixture.database.name()
    );
    fixture.observer.batch_execute(&allow).await.unwrap();
    let idem = idem(|policy| policy.style = Style::Reactive);
    for (end, effects) in ENDS.into_iter().flat_map(|end| [(end, 0), (end, 1)]) {
        let message = message();
        let processed = idem.process(&fixture.pool, &message, |tx, message| {
            ending(tx, message, end, effects)
        });
        assert_never_acknowledged(processed.await, &format!("{end:?}"));
        assert_handled_next(&fixture, &message, &format!("{end:?}")).await;
    }
}

/// What the second of three messages of a batch does after its insert.
#[derive(Clone, Copy, Debug)]
enum Misuse {
    Commits,
    /// The handler ignores that the server rejects its COMMIT.
    IgnoresCommit,
    Ends(End, usize),
    /// The handler ends the transaction and keeps its `Tx`.
    Keeps(End),
    /// The handler ends the transaction and fails.
    Fails(End, Failure),
}

/// How a handler fails.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Plain,
    /// With an error after which the runtime repeats the transaction.
    Retryable,
    Panic,
}

impl Failure {
    async fn fail(self, tx: &Tx) -> Handled {
        match self {
            Self::Plain => Err("out of stock".into()),
            Self::Retryable => {
                let conflict = "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$";
                let error = tx.batch_execute(conflict).await.unwrap_err();
                Err(HandlerError::from(error))
            }
            Self::Panic => panic!("a bug"),
        }
    }
}

const FAILURES: [Failure; 3] = [Failure::Plain, Failure::Retryable, Failure::Panic];

impl Misuse {
    fn all() -> Vec<Self> {
        let of_end = |end| {
            let fails = FAILURES.map(|failure| Self::Fails(end, failure));
            let others = [Self::Ends(end, 0), Self::Ends(end, 1), Self::Keeps(end)];
            others.into_iter().chain(fails)
        };
        let ends = ENDS.into_iter().flat_map(of_end);
        ends.chain([Self::Commits, Self::IgnoresCommit]).collect()
    }

    async fn handle(self, tx: Tx, message: Message, kept: &Mutex<Vec<Tx>>) -> Handled {
        match self {
            Self::Commits => committing(tx, message, "COMMIT").await,
            Self::IgnoresCommit => {
                ignoring(&tx, &message).await;
                Ok(vec![fact()])
            }
            Self::Ends(end, effects) => ending(tx, message, end, effects).await,
            Self::Keeps(end) => {
                insert(&tx, &message).await?;
                end.execute(&tx).await?;
                kept.lock().unwrap().push(tx);
                Ok(vec![])
            }
            Self::Fails(end, failure) => {
                insert(&tx, &message).await?;
                end.execute(&tx).await?;
                failure.fail(&tx).await
            }
        }
    }

    fn assert_error(self, result: Result<Processed, Error>) {
        let what = format!("{self:?}");
        match self {
            Self::Commits => assert_rejected_for_commit(result, &what),
            Self::IgnoresCommit => assert_retried_for_failed_statement(result, &what),
            Self::Ends(..) => assert_never_acknowledged(result, &what),
            Self::Keeps(_) => {
                assert!(matches!(result, Err(Error::TransactionKept)), "{result:?}");
            }
            Self::Fails(..) => {
                assert!(
                    matches!(result, Err(Error::Handler(_))),
                    "{what}: {result:?}"
                );
            }
        }
    }
}

/// I4: of a batch whose transaction a handler ends, in whatever way, only the message of this
/// handler fails. The other messages are handled, and its own message is handled at its next
/// delivery.
///
/// If the handler executes ROLLBACK and returns no error, the next handler runs outside of a
/// transaction, and is repeated: see [`Call::TransactionEnded`]. Its writes are then doubled.
#[tokio::test]
async fn i4_end_of_a_batch_fails_one_message_and_repeats_others() {
    let fixture = fixture().await;
    let misuses = Misuse::all().into_iter();
    for (misuse, prepared) in
        misuses.flat_map(|misuse| preparing().iter().map(move |&prepared| (misuse, prepared)))
    {
        let idem = preparing_idem(prepared, |policy| policy.retry.max_attempts = 1);
        let pool = used_pool(&fixture, &idem).await;
        let messages = [message(), message(), message()];
        let ender = messages[1].message_id();
        let (kept, runs) = (Mutex::new(Vec::new()), Mutex::new(0));
        let mut results = idem
            .process_batch(&pool, &messages, async |tx: Tx, message: Message| {
                *runs.lock().unwrap() += 1;
                match message.message_id() == ender {
                    true => misuse.handle(tx, message, &kept).await,
                    false => work(tx, message).await,
                }
            })
            .await;
        assert!(
            runs.into_inner().unwrap() > 3,
            "the batch is one transaction"
        );
        misuse.assert_error(results.remove(1));
        for result in results {
            assert!(
                matches!(result, Ok(Processed::New { .. })),
                "prepared: {prepared}, {misuse:?}: {result:?}"
            );
        }
        drop(kept);
        fixture.until_quiet().await;
        fixture.assert_done_once(&messages[0]).await;
        let runs_outside = matches!(misuse, Misuse::Ends(end, _) if end.is_outside());
        assert_eq!(
            fixture.work(&messages[2]).await,
            1 + i64::from(runs_outside),
            "{misuse:?}"
        );
        assert!(fixture.is_claimed(&messages[2]).await, "{misuse:?}");
        assert_eq!(fixture.effects(&messages[2]).await.len(), 1, "{misuse:?}");
        assert_handled_next(&fixture, &messages[1], &format!("{misuse:?}")).await;
    }
}

/// I4: a handler that ends its transaction and then fails or panics has only failed, and its
/// message is handled at its next delivery.
#[tokio::test]
async fn i4_failure_after_the_end_of_the_transaction_is_retried() {
    let fixture = fixture().await;
    let idem = idem(|policy| policy.retry.max_attempts = 2);
    for (end, failure) in ENDS
        .into_iter()
        .flat_map(|end| FAILURES.map(|failure| (end, failure)))
    {
        let message = message();
        let what = format!("{end:?}, {failure:?}");
        let attempt = idem.process(&fixture.pool, &message, async |tx: Tx, message: Message| {
            insert(&tx, &message).await?;
            end.execute(&tx).await?;
            failure.fail(&tx).await
        });
        let attempt = std::panic::AssertUnwindSafe(attempt).catch_unwind().await;
        match attempt {
            Ok(processed) => {
                let error = processed.expect_err(&what);
                assert!(matches!(error, Error::Handler(_)), "{what}: {error:?}");
                assert!(
                    matches!(error.settlement(), Settlement::Retry { .. }),
                    "{what}"
                );
            }
            Err(_) => assert!(matches!(failure, Failure::Panic), "{what}"),
        }
        fixture.until_quiet().await;
        assert_handled_next(&fixture, &message, &what).await;
    }
}

/// How a handler makes the functions of idem unavailable for the statements after it.
const CHANGES: [(&str, &str); 4] = [
    ("SET LOCAL ROLE tenant", "42501"),
    ("SET ROLE tenant", "42501"),
    ("SET LOCAL search_path = tenant_7", "42883"),
    ("SET search_path = tenant_7", "42883"),
];

/// I2, I10: a handler that does not restore the role or the search_path is an error of its message,
/// in each form of the transaction, and also if the statement for the effects is not prepared yet.
#[tokio::test]
async fn i10_handler_that_keeps_another_role_is_rejected() {
    let fixture = fixture_with_tenant().await;
    for &prepared in preparing() {
        for (rule, (change, state)) in RULES
            .into_iter()
            .flat_map(|rule| CHANGES.map(|change| (rule, change)))
        {
            let idem = with_rule(rule, prepared);
            for effects in [0, 2] {
                for message in [message(), Message::new(DESTINATION, "{}")] {
                    let before = traces(&fixture).await;
                    // A new pool has no prepared statements.
                    let pool = fixture.database.pool(8);
                    let processed = idem.process(&pool, &message, async |tx: Tx, message| {
                        insert(&tx, &message).await?;
                        tx.batch_execute(change).await?;
                        Ok((0..effects).map(|_| fact()).collect())
                    });
                    let error = processed.await.unwrap_err();
                    let what = format!("{idem:?}, {change}, {effects} effects, {message:?}");
                    assert!(
                        matches!(error, Error::Client(Call::SettingsChanged(_))),
                        "{what}: {error:?}"
                    );
                    // Without effects, it can be the COMMIT that fails.
                    let found = error.sqlstate().unwrap().code();
                    assert!(found == state || effects == 0 && found == "25000", "{what}");
                    let Settlement::Reject { reason } = error.settlement() else {
                        panic!("{what}: {:?}", error.settlement());
                    };
                    assert!(reason.contains("restore both"), "{reason}");
                    assert_eq!(traces(&fixture).await, before, "{what}");
                    if message.message_id().is_some() {
                        assert_handled_next(&fixture, &message, &what).await;
                    }
                }
            }
        }
    }
    fixture.until_quiet().await;
}

/// A handler may change the role and the search_path if it restores both.
#[tokio::test]
async fn restored_role_and_search_path_are_accepted() {
    let fixture = fixture_with_tenant().await;
    for rule in &RULES[..2] {
        let message = message();
        let processed = with_rule(*rule, true)
            .process(&fixture.pool, &message, async |tx: Tx, message| {
                let change = "SET LOCAL ROLE tenant; SET LOCAL search_path = tenant_7;
                              RESET ROLE; RESET search_path";
                tx.batch_execute(change).await?;
                work(tx, message).await
            })
            .await;
        assert!(
            matches!(processed, Ok(Processed::New { .. })),
            "{processed:?}"
        );
        fixture.assert_done_once(&message).await;
    }
}

/// I4: of a batch, only the message whose handler keeps another role or search_path is rejected.
/// The statement that finds this is used for the first time after the first handler.
#[tokio::test]
async fn i4_changed_settings_in_a_batch_fail_one_message() {
    let fixture = fixture_with_tenant().await;
    for (&prepared, (change, state)) in preparing()
        .iter()
        .flat_map(|prepared| CHANGES.map(|change| (prepared, change)))
    {
        for position in [0, 1] {
            let what = format!("prepared: {prepared}, {change}, position {position}");
            let messages = [message(), message(), message()];
            let changer = messages[position].message_id();
            let mut results = preparing_idem(prepared, |_| {})
                .process_batch(
                    &fixture.database.pool(1),
                    &messages,
                    async |tx: Tx, message: Message| {
                        insert(&tx, &message).await?;
                        if message.message_id() == changer {
                            tx.batch_execute(change).await?;
                        }
                        Ok(vec![fact()])
                    },
                )
                .await;
            let error = results.remove(position).unwrap_err();
            assert!(
                matches!(error, Error::Client(Call::SettingsChanged(_))),
                "{what}: {error:?}"
            );
            assert_eq!(error.sqlstate().unwrap().code(), state, "{what}");
            fixture.assert_untouched(&messages[position]).await;
            let others = messages.iter().enumerate().filter(|(n, _)| *n != position);
            for (result, (_, message)) in results.into_iter().zip(others) {
                assert!(
                    matches!(result, Ok(Processed::New { .. })),
                    "{what}: {result:?}"
                );
                fixture.assert_done_once(message).await;
            }
        }
    }
    fixture.until_quiet().await;
}

/// I4: of a batch, only the message whose handler keeps another role is rejected, also if the
/// handler after it restores the role of the session. That handler never runs with the other role.
#[tokio::test]
async fn i4_role_of_a_handler_ends_before_the_next_handler() {
    let fixture = fixture_with_tenant().await;
    for &prepared in preparing() {
        let messages = [message(), message()];
        let changer = messages[0].message_id();
        let mut results = preparing_idem(prepared, |_| {})
            .process_batch(
                &fixture.pool,
                &messages,
                async |tx: Tx, message: Message| {
                    if message.message_id() == changer {
                        insert(&tx, &message).await?;
                        tx.batch_execute("SET LOCAL ROLE tenant").await?;
                    } else {
                        let row = "INSERT INTO work SELECT $1 WHERE current_role = session_user";
                        tx.execute_typed(row, &[(&message.message_id(), Type::TEXT)])
                            .await?;
                        tx.batch_execute("RESET ROLE").await?;
                    }
                    Ok(vec![fact()])
                },
            )
            .await;
        let changed = results.remove(0);
        assert!(
            matches!(changed, Err(Error::Client(Call::SettingsChanged(_)))),
            "prepared: {prepared}: {changed:?}"
        );
        fixture.assert_untouched(&messages[0]).await;
        assert!(
            matches!(results[..], [Ok(Processed::New { .. })]),
            "prepared: {prepared}: {results:?}"
        );
        fixture.assert_done_once(&messages[1]).await;
    }
}

/// Returns a pool whose only connection has processed a batch, so that the statements of a batch
/// are prepared on it if `idem` prepares statements. The pool opens more connections while handlers
/// keep theirs.
async fn used_pool(fixture: &Fixture, idem: &Idem) -> Pool {
    let pool = fixture.database.pool(8);
    let results = idem
        .process_batch(&pool, &[message(), message()], work)
        .await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    pool
}

/// I2, I4: the second handler of a batch rolls back to a savepoint of the same name that the first
/// handler has left open. That must not revive a transaction in which the first handler has failed,
/// because the first message would then be claimed without its work.
#[tokio::test]
async fn i2_open_savepoint_does_not_revive_a_batch() {
    let fixture = fixture_with_tenant().await;
    for (&prepared, failure) in preparing()
        .iter()
        .flat_map(|prepared| ["SET LOCAL ROLE tenant", "SELECT 1 / 0"].map(|f| (prepared, f)))
    {
        let idem = preparing_idem(prepared, |policy| policy.retry.max_attempts = 1);
        for pool in [fixture.database.pool(1), used_pool(&fixture, &idem).await] {
            let messages = [message(), message()];
            let first = messages[0].message_id();
            let mut results = idem
                .process_batch(&pool, &messages, async |tx: Tx, message: Message| {
                    if tx.batch_execute("SAVEPOINT a").await.is_err() {
                        tx.batch_execute("ROLLBACK TO SAVEPOINT a").await?;
                    }
                    insert(&tx, &message).await?;
                    if message.message_id() == first {
                        let _ = tx.batch_execute(failure).await;
                    }
                    Ok(vec![fact()])
                })
                .await;
            let what = format!("prepared: {prepared}, {failure}");
            let failed = results.remove(0);
            assert!(failed.is_err(), "{what}: {failed:?}");
            fixture.assert_untouched(&messages[0]).await;
            assert!(
                matches!(results[..], [Ok(Processed::New { .. })]),
                "{what}: {results:?}"
            );
            fixture.assert_done_once(&messages[1]).await;
        }
    }
}

/// I4: a handler that ends its transaction and then changes the settings of the session is an error
/// of its message, and no error of the environment. Its connection is closed, so the settings do
/// not apply to the next message.
#[tokio::test]
async fn i4_settings_of_a_session_do_not_outlive_an_error() {
    let fixture = fixture_with_tenant().await;
    fixture
        .observer
        .batch_execute("CREATE TABLE own (n int)")
        .await
        .unwrap();
    // A pooler shares the sessions of the server, and so their settings, between its clients.
    let config = fixture.database.direct_url().parse().unwrap();
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(2)
        .build()
        .unwrap();
    for (end, change) in ENDS.into_iter().flat_map(|end| {
        ["SET ROLE tenant", "SET search_path = tenant_7"].map(|change| (end, change))
    }) {
        let what = format!("{end:?}, {change}");
        let (idem, message) = (Idem::new(), message());
        let processed = idem.process(&pool, &message, async |tx: Tx, _: Message| {
            end.execute(&tx).await?;
            tx.batch_execute("SET statement_timeout = '1 h'").await?;
            tx.batch_execute(change).await?;
            Ok(vec![])
        });
        assert_never_acknowledged(processed.await, &what);
        let settings = "SELECT current_role = session_user
                           AND current_setting('search_path') NOT LIKE '%tenant%'
                           AND current_setting('statement_timeout') = '0'";
        let clients = [pool.get().await.unwrap(), pool.get().await.unwrap()];
        for client in &clients {
            let is_unchanged: bool = client.query_one(settings, &[]).await.unwrap().get(0);
            assert!(is_unchanged, "{what}");
        }
        assert_handled_next(&fixture, &message, &what).await;
    }
}

/// I4: a role that may guard the transaction and not record effects is an error of the environment,
/// and no error of each message.
#[tokio::test]
async fn i4_missing_grant_after_the_handler_rejects_no_message() {
    let fixture = Fixture::new().await;
    let role = fixture.database.role("half").await.unwrap();
    let grants = format!(
        "SELECT idem_grant('{role}', 'consumer'); GRANT ALL ON work TO {role};
         REVOKE EXECUTE ON FUNCTION idem_record_effects_batch(text[], text, jsonb),
             idem_send(text, jsonb, text, text, jsonb, uuid, text) FROM {role}"
    );
    fixture.observer.batch_execute(&grants).await.unwrap();
    let mut config: Config = fixture.database.url().parse().unwrap();
    config.user(&role);
    let pool = Pool::builder(Manager::new(config, NoTls)).build().unwrap();
    for (rule, prepared) in RULES
        .into_iter()
        .flat_map(|rule| preparing().iter().map(move |prepared| (rule, *prepared)))
    {
        let message = message();
        let idem = with_rule(rule, prepared);
        let error = idem.process(&pool, &message, work).await.unwrap_err();
        let what = format!("{idem:?}: {error:?}");
        assert_eq!(error.sqlstate().unwrap().code(), "42501", "{what}");
        assert!(
            matches!(error.settlement(), Settlement::Release { .. }),
            "{what}: {:?}",
            error.settlement()
        );
        assert_handled_next(&fixture, &message, &what).await;
    }
}

/// Creates a fixture with a role and a schema that have nothing of idem.
async fn fixture_with_tenant() -> Fixture {
    let fixture = Fixture::new().await;
    let tenant = "DO $$ BEGIN CREATE ROLE tenant; EXCEPTION WHEN duplicate_object THEN END $$;
                  CREATE SCHEMA tenant_7; GRANT ALL ON work TO tenant";
    fixture.observer.batch_execute(tenant).await.unwrap();
    fixture
}
