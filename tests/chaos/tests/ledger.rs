//! Tests of the ledger of a campaign with recorded histories. A row of the ledger is red when it
//! counts errors. A correct history makes no row red, and each wrong history makes the rows of its
//! errors red.
//!
//! Rows for errors that recorded data cannot contain are not tested: a fault without recovery, a
//! process that ended, messages that a drain has left over.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use idem_chaos::checker::{Errors, History, Violation};
use idem_chaos::site::SentPoison;
use idem_chaos::watch::{self, Watched};
use idem_chaos::{schema, server_log};
use idem_cluster::{Cluster, Install};
use idem_demo::range::live::place::{FACTS, LETTERS, Logged, STEPS};
use idem_demo::range::live::post::{BOARD, TARGETS};
use idem_demo::range::live::work::{claims::COMMITTED, letters::Letter, steps::Step};
use idem_demo::range::live::{Field, business as live, poison::Poison};
use idem_demo::range::message::{Fact, Kind, Message};
use idem_demo::range::{business, observer::Published, traffic::Traffic};
use idem_testkit::{Database, Session, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use Violation as V;
use idem_client::{Claim, Destination, Effect, MessageId, effects, try_claim};

/// The rows that are not tested, because only a running campaign can make them red.
const NOT_RECORDED: [V; 3] = [V::NotRecovered, V::ProcessEnded, V::NotDrained];

/// Changes that make the database wrong, and the rows that must be red. Where two rows are listed,
/// the error of the first row is also an error of the second row: for example, a move that was made
/// twice was not made exactly once.
const WRONG_TABLES: [(&str, &[V]); 25] = [
    ("DELETE FROM counted WHERE attempt = '{hit}'", &[V::Lost]),
    ("DELETE FROM heard WHERE attempt = '{miss}'", &[V::Lost]),
    (
        "INSERT INTO moved VALUES ('{move}')",
        &[V::HandledTwice, V::MoveNotOnce],
    ),
    (
        "INSERT INTO shot (attempt, player, hit) SELECT attempt, player, hit FROM shot \
         WHERE attempt = '{miss}'",
        &[V::HandledTwice, V::Torn],
    ),
    (
        "INSERT INTO counted (attempt, at_s) SELECT attempt, at_s + 301 FROM counted \
         WHERE attempt = '{hit}'",
        &[V::Late],
    ),
    (
        "UPDATE shot SET hit = NOT hit WHERE attempt = '{miss}'",
        &[V::Torn],
    ),
    (
        "INSERT INTO heard (message_id, attempt, hit, payload)
         SELECT message_id, attempt, NOT hit, payload FROM heard WHERE attempt = '{hit}'",
        &[V::Contradiction, V::OtherFact],
    ),
    (
        "INSERT INTO heard (message_id, attempt, hit, payload)
         SELECT gen_random_uuid(), attempt, hit, payload FROM heard WHERE attempt = '{miss}'",
        &[V::OtherFact],
    ),
    (
        "DELETE FROM idem.outbox_0 WHERE message_id = '{effect}';
         DELETE FROM idem.outbox_1 WHERE message_id = '{effect}';
         DELETE FROM idem.outbox_2 WHERE message_id = '{effect}';
         DELETE FROM idem.outbox_3 WHERE message_id = '{effect}'",
        &[V::NotOneEffect],
    ),
    ("DELETE FROM moved WHERE move = '{move}'", &[V::MoveNotOnce]),
    ("INSERT INTO counted VALUES ('{hit}')", &[V::HitAgain]),
    (
        "UPDATE board SET hits = hits + 1 WHERE player = 0",
        &[V::WrongBoard],
    ),
    (
        "INSERT INTO claimed VALUES (3, 1, 1000, 1001)",
        &[V::ClaimedTwice],
    ),
    (
        "INSERT INTO shot (attempt, player, hit) VALUES (gen_random_uuid(), 0, false)",
        &[V::ForgottenEarly],
    ),
    ("DELETE FROM claimed WHERE attempt = 2", &[V::CommitLost]),
    (
        "INSERT INTO idem.inbox_standard_3 (key, claimed_at, destination, id)
         SELECT i.id::uuid, i.claimed_at + interval '1 second', d.id, NULL
           FROM idem.inbox i JOIN idem.destination d ON d.name = i.destination
           WHERE i.id = '{move}'",
        &[V::TwoClaims],
    ),
    ("INSERT INTO leased VALUES (1, 2, 15)", &[V::LostToken]),
    (
        "INSERT INTO completed VALUES (1, 1, 12)",
        &[V::CompletedTwice],
    ),
    (
        "SELECT idem_discard('{poison}'::uuid, 'range.targets')",
        &[V::PoisonNotOnce],
    ),
    (
        "SELECT idem_reject(gen_random_uuid(), 'range.targets', payload, last_error) \
         FROM idem.dead_letters",
        &[V::PoisonNotOnce],
    ),
    (
        r#"UPDATE idem.dead_letter SET errors = jsonb_set(errors, '{-1, error}', '"a bad day"')"#,
        &[V::OtherReason],
    ),
    ("DELETE FROM mended", &[V::MendedNotOnce]),
    (
        "INSERT INTO mended SELECT poison FROM mended",
        &[V::MendedNotOnce],
    ),
    (
        "SELECT idem_reject(gen_random_uuid(), 'range.targets', 'a command'::bytea, \
         'unknown command')",
        &[V::GivenUp],
    ),
    (
        "INSERT INTO idem.parked_effect (relay, partition, error, effect, seq)
         SELECT r.id, 0, 'parked', e, e.seq FROM idem.outbox_row e, idem.relay r
         WHERE r.name = 'range' LIMIT 1",
        &[V::Parked],
    ),
];

/// A function that makes a log of the broker wrong.
type Change = fn(&mut Vec<Logged>);

/// Changes that make the log of the broker wrong, and the row that must be red. The first entry of
/// the log is a letter, and the last two entries are steps.
const WRONG_LOGS: [(Change, V); 4] = [
    (|log| drop(log.remove(0)), V::LetterLost),
    (|log| log.push(written_again(&log[0])), V::LetterTwice),
    (|log| drop(log.pop()), V::StepLost),
    (
        |log| {
            let last = log.len() - 1;
            log.swap(last - 1, last);
        },
        V::StepOutOfOrder,
    ),
];

/// A history in a database of a server without a maintenance worker.
struct Recorded {
    db: Database,
    session: Session,
    dir: TempDir,
    traffic: Traffic,
    poison: Vec<SentPoison>,
    published: Vec<Logged>,
    watched: Watched,
}

impl Recorded {
    /// Records a correct history.
    async fn new() -> Result<Self> {
        let mut cluster = Cluster::builder(&Install::from_env()?)
            .name("chaos-ledger")
            .setting("shared_buffers", "32MB")
            .setting("autovacuum", "off")
            .setting("idem.databases", "none");
        for (name, value) in server_log::SETTINGS {
            cluster = cluster.setting(name, value);
        }
        let db = Database::with_idem_in(Arc::new(cluster.start()?), "ledger").await?;
        let session = db.connect().await?;
        session.run("SET search_path = range, public").await?;
        let field = Field {
            messages: 40,
            duplicates: 0.0,
            players: 3,
            targets: 2,
            ..Field::default()
        };
        let traffic = field.traffic()?;
        schema::set_up(&session, field.players, &traffic.positions, None).await?;
        let poison = [Poison::UnknownType, Poison::Repairable].map(|poison| SentPoison {
            poison,
            id: Uuid::from_u128(poison as u128 + 1),
            repaired: poison == Poison::Repairable,
        });
        let mut recorded = Self {
            db,
            session,
            dir: tempfile::tempdir()?,
            traffic,
            poison: poison.to_vec(),
            published: Vec::new(),
            watched: Watched {
                // The rows about maintenance need the process id of a worker. No process has the id
                // 0.
                workers: BTreeSet::from([0]),
                ..Watched::default()
            },
        };
        // Handle the second half first: some targets have then moved too early, so some shots miss.
        let mut commands = recorded.traffic.commands.clone();
        let half = commands.len() / 2;
        commands.rotate_left(half);
        for command in &commands {
            recorded.handle(command).await?;
        }
        recorded.others().await?;
        Ok(recorded)
    }

    /// Handles a command. For a shot, also records its fact and lets the observer receive the fact.
    async fn handle(&mut self, command: &Message) -> Result<()> {
        let tx = self.session.transaction().await?;
        let Claim::New(claimed) =
            try_claim(&tx, &command.id.into(), &Destination::new(TARGETS)?).await?
        else {
            bail!("{} is claimed already", command.id);
        };
        if command.kind == Kind::MoveTarget {
            live::move_target(&tx, &serde_json::from_slice(&command.body)?).await?;
            return Ok(tx.commit().await?);
        }
        let fact = business::decide(&tx, serde_json::from_slice(&command.body)?).await?;
        business::keep_shot(&tx, &fact).await?;
        let effect = Effect::json(FACTS, &fact)?.message_type(fact.kind().name());
        claimed.record_effects(&[effect]).await?;
        tx.commit().await?;
        self.hear(&fact).await
    }

    /// Records that the observer has received the fact. For a hit, also counts the hit and
    /// publishes a letter.
    async fn hear(&mut self, fact: &Fact) -> Result<()> {
        let recorded = effects(
            &*self.session,
            &fact.attempt.into(),
            &Destination::new(TARGETS)?,
        )
        .await?;
        let effect = recorded.into_iter().next().context("no effect")?;
        let message_id = effect.message_id;
        let heard = Published {
            message_id,
            hit: fact.hit,
            payload: effect.payload.to_vec(),
        };
        live::hear(&*self.session, fact.attempt, &heard).await?;
        if fact.hit {
            let tx = self.session.transaction().await?;
            let Claim::New(_) =
                try_claim(&tx, &MessageId::from(message_id), &Destination::new(BOARD)?).await?
            else {
                bail!("{message_id} is counted already");
            };
            business::count_hit(&tx, fact).await?;
            tx.commit().await?;
            self.published.push(letter(fact.attempt, "letter")?);
        }
        Ok(())
    }

    /// Records everything that needs no command: clients without a broker, steps and poison
    /// messages.
    async fn others(&mut self) -> Result<()> {
        // A kill has interrupted the last line.
        fs::write(self.dir.path().join(COMMITTED), "1\n2\n-9")?;
        let [poison, mended] = [&self.poison[0], &self.poison[1]];
        self.session
            .run(&format!(
                "ALTER TABLE idem.inbox_standard_3 DISABLE TRIGGER note_load;
                 ALTER TABLE idem.parked_effect DISABLE TRIGGER note_load;
                 INSERT INTO claimed VALUES (1, 1, 0, 1), (2, 2, 5, 6);
                 INSERT INTO leased VALUES (1, 1, 10);
                 INSERT INTO completed VALUES (1, 1, 20);
                 UPDATE step SET n = 2 WHERE key = 1;
                 INSERT INTO mended VALUES ('{}')",
                mended.id
            ))
            .await?;
        let payload = poison.poison.payload(poison.id)?;
        self.session
            .execute(
                "SELECT idem_reject($1::uuid, 'range.targets', $2, 'unknown command: none')",
                &[&poison.id, &payload],
            )
            .await?;
        for n in [1, 2] {
            self.published.push(Logged {
                topic: STEPS.to_owned(),
                message_id: format!("step {n}"),
                payload: serde_json::to_vec(&Step { key: 1, n })?,
            });
        }
        Ok(())
    }

    /// Replaces the placeholders in a statement of [`WRONG_TABLES`] with ids.
    async fn named(&self, sql: &str) -> Result<String> {
        let kind = Kind::MoveTarget;
        let moves = self
            .traffic
            .commands
            .iter()
            .find(|command| command.kind == kind);
        let one = async |sql: &str| self.session.text(sql).await;
        Ok(sql
            .replace(
                "{hit}",
                &one("SELECT min(attempt::text) FROM heard WHERE hit").await?,
            )
            .replace(
                "{miss}",
                &one("SELECT min(attempt::text) FROM heard WHERE NOT hit").await?,
            )
            .replace(
                "{effect}",
                &one("SELECT min(message_id::text) FROM heard WHERE NOT hit").await?,
            )
            .replace("{move}", &moves.context("no move")?.id.to_string())
            .replace("{poison}", &self.poison[0].id.to_string()))
    }

    async fn judge(&self, published: &[Logged]) -> Result<Errors> {
        let watched = Mutex::new(self.watched.clone());
        watch::look(&self.session, &watched).await?;
        let watched = watched.into_inner().unwrap();
        let history = History {
            client: &self.session,
            dir: self.dir.path(),
            traffic: &self.traffic,
            poison: &self.poison,
            published,
            server_log: &self.db.cluster().log()?,
            watched: &watched,
        };
        history.judge().await
    }

    /// Returns the rows that are red.
    async fn red(&self, published: &[Logged]) -> Result<Vec<V>> {
        let errors = self.judge(published).await?;
        Ok(errors
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(row, _)| row)
            .collect())
    }

    /// Opens a session with this application name.
    async fn connect(&self, application: &str) -> Result<Client> {
        let url = self.db.cluster().connection_string(self.db.name());
        let (client, connection) =
            tokio_postgres::connect(&format!("{url} application_name={application}"), NoTls)
                .await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Waits until the server has logged `count` waits for a lock.
    async fn waits(&self, count: usize) -> Result<()> {
        let cluster = self.db.cluster();
        until("the wait is logged", async || {
            Ok(cluster.log()?.matches("still waiting for").count() >= count)
        })
        .await
    }
}

fn letter(attempt: Uuid, message_id: &str) -> Result<Logged> {
    let execution = Uuid::from_u128(rand::random());
    Ok(Logged {
        topic: LETTERS.to_owned(),
        message_id: message_id.to_owned(),
        payload: serde_json::to_vec(&Letter { attempt, execution })?,
    })
}

/// Returns a letter of another execution with the same message id.
fn written_again(logged: &Logged) -> Logged {
    let Letter { attempt, .. } = serde_json::from_slice(&logged.payload).unwrap();
    letter(attempt, &logged.message_id).unwrap()
}

/// Every row that recorded data can show is red for its own error and for no other error.
#[tokio::test]
async fn each_wrong_history_turns_its_row_red() -> Result<()> {
    let mut recorded = Recorded::new().await?;
    let judged = recorded.judge(&recorded.published).await?;
    let rows = V::ALL.into_iter().filter(|row| !NOT_RECORDED.contains(row));
    assert_eq!(judged, rows.map(|row| (row, 0)).collect::<Errors>());

    // A relay may publish a letter or a step twice. This is no error.
    let mut again = recorded.published.clone();
    again.push(again[0].clone());
    again.push(again[again.len() - 3].clone());
    assert_eq!(recorded.red(&again).await?, []);

    let mut shown = BTreeSet::from([
        V::UpdatedRow,
        V::MaintenanceWait,
        V::MaintenanceDeadlock,
        V::ServerCrashed,
    ]);
    for (sql, rows) in WRONG_TABLES {
        recorded
            .session
            .run(&format!("BEGIN; {}", recorded.named(sql).await?))
            .await?;
        assert_eq!(recorded.red(&recorded.published).await?, rows, "{sql}");
        recorded.session.run("ROLLBACK").await?;
        shown.insert(rows[0]);
    }
    for (change, row) in WRONG_LOGS {
        let mut published = recorded.published.clone();
        change(&mut published);
        assert_eq!(recorded.red(&published).await?, [row]);
        shown.insert(row);
    }
    maintenance(&recorded).await?;
    updates(&recorded).await?;
    crash(&mut recorded).await?;
    shown.extend(NOT_RECORDED);
    assert_eq!(shown, BTreeSet::from(V::ALL));
    Ok(())
}

/// A wait of maintenance for a client makes no row red. A wait of a client for maintenance, and a
/// deadlock of both, make rows red.
async fn maintenance(recorded: &Recorded) -> Result<()> {
    let maintainer = recorded.connect(server_log::MAINTENANCE).await?;
    let client = recorded.connect("client").await?;
    client
        .batch_execute("CREATE TABLE first (); CREATE TABLE second ()")
        .await?;

    client.batch_execute("BEGIN; LOCK TABLE second").await?;
    maintainer.batch_execute("BEGIN; LOCK TABLE first").await?;
    let waiting = async {
        maintainer.batch_execute("LOCK TABLE second").await?;
        maintainer.batch_execute("COMMIT").await
    };
    let meeting = async {
        recorded.waits(1).await?;
        assert_eq!(recorded.red(&recorded.published).await?, []);
        // The maintainer has checked for a deadlock before the client begins to wait, so the client
        // detects the deadlock.
        assert!(client.batch_execute("LOCK TABLE first").await.is_err());
        client.batch_execute("ROLLBACK").await?;
        anyhow::Ok(())
    };
    let (waited, met) = tokio::join!(waiting, meeting);
    waited?;
    met?;
    assert_eq!(
        recorded.red(&recorded.published).await?,
        [V::MaintenanceDeadlock]
    );

    let look = recorded.connect(server_log::LOOK).await?;
    let (of_idem, of_others) = ("idem.outbox_0", "first");
    let both = vec![V::MaintenanceWait, V::MaintenanceDeadlock];
    // The log already contains one wait. The first two waits of this loop make no further row red,
    // and the third wait does.
    for (waits, (session, table, red)) in (2..).zip([
        (&client, of_others, vec![V::MaintenanceDeadlock]),
        (&look, of_idem, vec![V::MaintenanceDeadlock]),
        (&client, of_idem, both),
    ]) {
        maintainer
            .batch_execute(&format!("BEGIN; LOCK TABLE {table}"))
            .await?;
        let read = format!("SELECT count(*) FROM {table}");
        let (waited, released) = tokio::join!(session.batch_execute(&read), async {
            recorded.waits(waits).await?;
            maintainer.batch_execute("COMMIT").await?;
            anyhow::Ok(())
        });
        waited?;
        released?;
        assert_eq!(
            recorded.red(&recorded.published).await?,
            red,
            "wait {waits}"
        );
    }
    Ok(())
}

/// A backend that aborts (SIGABRT) counts as a crash. A backend that is killed (SIGKILL) does not.
async fn crash(recorded: &mut Recorded) -> Result<()> {
    for (signal, is_a_crash) in [(Signal::SIGKILL, false), (Signal::SIGABRT, true)] {
        let victim = recorded.db.connect().await?;
        kill(Pid::from_raw(victim.pid().await?), signal)?;
        let cluster = recorded.db.cluster();
        let ended = format!("was terminated by signal {}", signal as i32);
        until("the server has logged the end of the backend", async || {
            Ok(cluster.log()?.contains(&ended))
        })
        .await?;
        let mut session = None;
        until("the server accepts connections", async || {
            session = recorded.db.connect().await.ok();
            Ok(session.is_some())
        })
        .await?;
        recorded.session = session.context("no session is open")?;
        recorded
            .session
            .run("SET search_path = range, public")
            .await?;
        let red = recorded.red(&recorded.published).await?;
        assert_eq!(
            red.contains(&V::ServerCrashed),
            is_a_crash,
            "{signal}: {red:?}"
        );
    }
    Ok(())
}

/// An update of a claim makes a row red. The ledger reads updates from the statistics, which a
/// session reports only after its commit, so the test waits.
async fn updates(recorded: &Recorded) -> Result<()> {
    let before = recorded.red(&recorded.published).await?;
    recorded
        .session
        .run("UPDATE idem.inbox_standard_0 SET claimed_at = claimed_at")
        .await?;
    until("the update is in the statistics", async || {
        let red = recorded.red(&recorded.published).await?;
        Ok(red.contains(&V::UpdatedRow) && red.len() == before.len() + 1)
    })
    .await
}
