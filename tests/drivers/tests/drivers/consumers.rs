//! The consumers of docs/consumer-programs.md: the tests execute the code of the page.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, ensure};
use idem_brokers::RabbitMq;
use idem_cluster::workspace_root;
use idem_drivers::install;
use idem_testkit::{Database, Session, until};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Queue};

use crate::link::{Link, Server};

const QUEUE: &str = "payments";
const AMOUNT: i64 = 100;

/// Returns the body of a payment. Account 7 exists, 8 does not, and a CHECK forbids to pay 9.
fn payment_of(account: i64) -> String {
    format!(r#"{{"account": {account}, "amount": {AMOUNT}}}"#)
}

/// Returns the bodies of messages that are no payment, or one that must not be paid.
fn rejected_payments() -> [String; 9] {
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    [
        payment_of(8),
        payment_of(9),
        "no JSON \0".to_owned(),
        String::new(),
        "[1]".to_owned(),
        format!(r#"{{"account": 7, "amount": 100, "note": {deep}}}"#),
        r#"{"account": 7}"#.to_owned(),
        r#"{"account": 7, "amount": true}"#.to_owned(),
        r#"{"account": 7, "amount": {}}"#.to_owned(),
    ]
}

/// Publishes a payment with an id that is not UTF-8. The client of Rust has no such ids.
const PUBLISH_WITHOUT_UTF8: &str = r#"
import os, pika
channel = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
channel.confirm_delivery()
properties = pika.BasicProperties(message_id=b"latin-1 \xe9", delivery_mode=2)
channel.basic_publish("", "payments", b'{"account": 7, "amount": 100}  ', properties)
"#;

/// A consumer that is killed when the value is dropped.
struct Consumer(Child);

impl Drop for Consumer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everything that a consumer needs. A consumer reaches the database and the broker over proxies:
/// pgJDBC does not connect to Unix sockets.
struct Fixture {
    db: Database,
    session: Session,
    broker: RabbitMq,
    to_db: Link,
    to_broker: Link,
    _connection: Connection,
    channel: Channel,
    /// What the consumers write. Some of them must fail, so this is not shown if the test passes.
    output: PathBuf,
}

impl Fixture {
    async fn start(name: &str) -> Result<Self> {
        let db = Database::with_idem(name).await?;
        let session = db.connect().await?;
        session
            .run(
                "CREATE TABLE account (
                     id bigint PRIMARY KEY, paid bigint NOT NULL, CHECK (id = 7 OR paid = 0)
                 );
                 INSERT INTO account VALUES (7, 0), (9, 0);
                 CREATE FUNCTION always_new(text, text) RETURNS boolean LANGUAGE sql
                     AS 'SELECT true';
                 CREATE FUNCTION record_nothing(text, text, jsonb) RETURNS void LANGUAGE sql
                     AS ''",
            )
            .await?;
        // The page says what to do if the default of the database is not READ COMMITTED.
        let isolation = "SET default_transaction_isolation";
        let name_of_db = db.name();
        session
            .run(&format!(
                "ALTER DATABASE {name_of_db} {isolation} = 'repeatable read';
                 ALTER ROLE CURRENT_USER IN DATABASE {name_of_db} {isolation} = 'read committed'"
            ))
            .await?;
        let broker = RabbitMq::start()?;
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&broker.url(), properties).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let output = workspace_root().join(format!("target/drivers/{name}.log"));
        File::create(&output)?;
        let socket = db.cluster().socket_dir().join(".s.PGSQL.5432");
        let fixture = Self {
            to_db: Link::to(Server::Socket(socket)).await?,
            to_broker: Link::to(Server::Port(broker.port())).await?,
            db,
            session,
            broker,
            _connection: connection,
            channel,
            output,
        };
        fixture.queue().await?;
        Ok(fixture)
    }

    /// Returns the state of the queue. Its messages are those that are not delivered.
    async fn queue(&self) -> Result<Queue> {
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self
            .channel
            .queue_declare(QUEUE.into(), durable, FieldTable::default());
        Ok(declared.await?)
    }

    /// Publishes payments with these message ids.
    async fn publish(&self, ids: &[&str]) -> Result<()> {
        for id in ids {
            let properties = BasicProperties::default().with_message_id(ShortString::from(*id));
            self.publish_with(properties, &payment_of(7)).await?;
        }
        Ok(())
    }

    async fn publish_with(&self, properties: BasicProperties, payment: &str) -> Result<()> {
        let published = self.channel.basic_publish(
            "".into(),
            QUEUE.into(),
            BasicPublishOptions::default(),
            payment.as_bytes(),
            properties.with_delivery_mode(2),
        );
        let confirmed = published.await?.await?;
        ensure!(confirmed.is_ack(), "{confirmed:?}");
        Ok(())
    }

    async fn publish_without_utf8(&self) -> Result<()> {
        let url = self.broker.url();
        let published = tokio::task::spawn_blocking(move || {
            let mut command = install::python_consumer(PUBLISH_WITHOUT_UTF8)?;
            Ok::<_, anyhow::Error>(command.env("AMQP_URL", url).output()?)
        });
        let published = published.await??;
        ensure!(published.status.success(), "{published:?}");
        Ok(())
    }

    /// Starts a consumer, and waits until it consumes.
    async fn consume(&self, mut command: Command) -> Result<Consumer> {
        self.db.cluster().set_server_of(&mut command);
        let broker = format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.to_broker.port());
        let started = command
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", self.to_db.port().to_string())
            .env("PGDATABASE", self.db.name())
            .env("AMQP_URL", broker)
            .stdout(self.output()?)
            .stderr(self.output()?)
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let mut consumer = Consumer(started);
        until("the consumer consumes", async || {
            let ended = consumer.0.try_wait()?;
            ensure!(ended.is_none(), "the consumer has ended: {ended:?}");
            Ok(self.queue().await?.consumer_count() == 1)
        })
        .await?;
        Ok(consumer)
    }

    fn output(&self) -> Result<File> {
        Ok(File::options().append(true).open(&self.output)?)
    }

    /// Kills a consumer, and waits until the broker has its messages again.
    async fn kill(&self, consumer: Consumer) -> Result<()> {
        drop(consumer);
        until("the broker has no consumer", async || {
            Ok::<_, anyhow::Error>(self.queue().await?.consumer_count() == 0)
        })
        .await
    }

    /// Waits until a consumer has ended by itself, and until the broker has its messages again.
    async fn until_ended(&self, mut consumer: Consumer) -> Result<ExitStatus> {
        let mut ended = None;
        until("the consumer ends", async || {
            ended = consumer.0.try_wait()?;
            Ok::<_, anyhow::Error>(ended.is_some())
        })
        .await?;
        self.kill(consumer).await?;
        ended.context("the consumer has not ended")
    }

    /// Waits until no message is in the queue, and none is delivered without acknowledgement.
    async fn until_acknowledged(&self) -> Result<()> {
        // This check is cheap, and `rabbitmqctl` starts a runtime of Erlang.
        until("every message is delivered", async || {
            Ok::<_, anyhow::Error>(self.queue().await?.message_count() == 0)
        })
        .await?;
        until("every message is acknowledged", async || {
            let queues = ["list_queues", "--silent", "--no-table-headers", "messages"];
            Ok(self.broker.control(&queues)?.trim() == "0")
        })
        .await
    }

    /// Returns the number of payments.
    async fn payments(&self) -> Result<i64> {
        let paid = "SELECT paid FROM account WHERE id = 7";
        let paid = self.session.text(paid).await?;
        Ok(paid.parse::<i64>()? / AMOUNT)
    }

    /// Returns the messages with one receipt.
    async fn receipts(&self) -> Result<String> {
        let sql = "SELECT string_agg(id, ' ' ORDER BY id)
                     FROM unnest('{p1,p2,p3,p4,p5,p6}'::text[]) id
                    WHERE (SELECT count(*) FROM idem_effects(id, 'billing.charge')) = 1";
        self.session.text(sql).await
    }

    /// Waits until a payment waits for the row of its account.
    async fn until_waiting(&self) -> Result<()> {
        until("the consumer waits for the account", async || {
            let waiting = "SELECT count(*) > 0 FROM pg_stat_activity
                            WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE account%'
                              AND datname = current_database()";
            Ok::<_, anyhow::Error>(self.session.text(waiting).await? == "t")
        })
        .await
    }
}

/// A language with a consumer in the page.
struct Language {
    /// Its name in the page.
    name: &'static str,
    command: fn(&str) -> Result<Command>,
    /// A part of the code, and a part that makes the broker acknowledge each message when it
    /// delivers it.
    acknowledged_early: (&'static str, &'static str),
}

impl Language {
    /// Returns the code of the page.
    fn code(&self) -> Result<String> {
        let page = fs::read_to_string(workspace_root().join("docs/consumer-programs.md"))?;
        let (_, code) = page
            .split_once(&format!("\n```{}\n", self.name))
            .with_context(|| format!("docs/consumer-programs.md has no code in {}", self.name))?;
        let (code, _) = code.split_once("\n```\n").context("the code has no end")?;
        Ok(format!("{code}\n"))
    }

    /// Returns the code without idem.
    fn without_idem(&self) -> Result<String> {
        let code = self.code()?;
        ensure!(code.contains("idem_try_claim") && code.contains("idem_record_effects"));
        Ok(code
            .replace("idem_try_claim", "always_new")
            .replace("idem_record_effects", "record_nothing"))
    }

    /// Returns the code with an acknowledgement before the commit.
    fn acknowledged_early(&self) -> Result<String> {
        let (part, replacement) = self.acknowledged_early;
        let code = self.code()?;
        ensure!(
            code.matches(part).count() == 1,
            "the code has not one {part}"
        );
        Ok(code.replace(part, replacement))
    }
}

/// The consumer of one language, with variants that are wrong.
struct Trial {
    fixture: Fixture,
    language: Language,
}

impl Trial {
    async fn consume(&self, code: &str) -> Result<Consumer> {
        self.fixture.consume((self.language.command)(code)?).await
    }

    /// Lets a consumer process the messages that the broker has.
    async fn process(&self, code: &str) -> Result<()> {
        if self.fixture.queue().await?.message_count() == 0 {
            return Ok(());
        }
        let consumer = self.consume(code).await?;
        self.fixture.until_acknowledged().await?;
        self.fixture.kill(consumer).await
    }

    /// Kills the consumer after it has claimed this message and before its commit. Returns the
    /// number of payments after the next consumer has processed the queue.
    async fn kill_before_commit(&self, code: &str, id: &str) -> Result<i64> {
        let fixture = &self.fixture;
        let before = fixture.payments().await?;
        let holder = fixture.db.connect().await?;
        holder
            .run("BEGIN; UPDATE account SET paid = paid WHERE id = 7")
            .await?;
        let consumer = self.consume(code).await?;
        fixture.publish(&[id]).await?;
        fixture.until_waiting().await?;
        fixture.kill(consumer).await?;
        holder.run("ROLLBACK").await?;
        self.process(code).await?;
        Ok(fixture.payments().await? - before)
    }

    /// Kills the consumer after the commit of this message. The broker does not get the
    /// acknowledgement. Returns the number of payments after the next consumer has processed the
    /// queue.
    async fn kill_after_commit(&self, code: &str, id: &str) -> Result<i64> {
        let fixture = &self.fixture;
        let before = fixture.payments().await?;
        let consumer = self.consume(code).await?;
        fixture.to_broker.mute();
        fixture.publish(&[id]).await?;
        until("the message is paid", async || {
            Ok::<_, anyhow::Error>(fixture.payments().await? == before + 1)
        })
        .await?;
        fixture.kill(consumer).await?;
        let redelivered = fixture.queue().await?.message_count();
        ensure!(redelivered == 1, "the broker has {redelivered} messages");
        self.process(code).await?;
        Ok(fixture.payments().await? - before)
    }

    /// Publishes messages that are always rejected, and a payment after them. Each of them becomes
    /// a dead letter, also one without an id that PostgreSQL can store, and the payment is paid.
    async fn reject(&self, code: &str) -> Result<()> {
        let fixture = &self.fixture;
        let consumer = self.consume(code).await?;
        for (number, payment) in rejected_payments().iter().enumerate() {
            let id = ShortString::from(format!("r{number}"));
            let properties = BasicProperties::default().with_message_id(id);
            fixture.publish_with(properties, payment).await?;
        }
        let paid = payment_of(7);
        fixture
            .publish_with(BasicProperties::default(), &paid)
            .await?;
        let zero = BasicProperties::default().with_message_id(ShortString::from("zero\0byte"));
        fixture.publish_with(zero, &format!("{paid} ")).await?;
        fixture.publish_without_utf8().await?;
        fixture.publish(&["p\u{e9}7"]).await?;
        // Each takes three seconds.
        for count in 1..=12 {
            until(
                &format!("the consumer rejects {count} messages"),
                async || {
                    let letters = "SELECT count(*) FROM idem.dead_letters";
                    let letters: i32 = fixture.session.text(letters).await?.parse()?;
                    Ok::<_, anyhow::Error>(letters >= count)
                },
            )
            .await?;
        }
        fixture.until_acknowledged().await?;
        fixture.kill(consumer).await?;
        // A message without an id gets a UUID.
        let letters = "SELECT string_agg(CASE WHEN length(id) = 36 THEN 'UUID' ELSE id END, ' '
                                         ORDER BY length(id), id)
                         FROM idem.dead_letters
                        WHERE destination = 'billing.charge'";
        let letters = fixture.session.text(letters).await?;
        ensure!(
            letters == "r0 r1 r2 r3 r4 r5 r6 r7 r8 UUID UUID UUID",
            "the dead letters are {letters}"
        );
        let claimed = "SELECT idem_is_claimed(U&'p\\00e97', 'billing.charge')";
        ensure!(
            fixture.session.text(claimed).await? == "t",
            "the id is another"
        );
        Ok(())
    }

    /// Closes the connection to the broker, and waits until the consumer has ended with an error.
    async fn lose_broker(&self, code: &str) -> Result<()> {
        let consumer = self.consume(code).await?;
        self.fixture.to_broker.cut();
        let ended = self.fixture.until_ended(consumer).await?;
        ensure!(!ended.success(), "the consumer ended with {ended}");
        Ok(())
    }
}

/// Asserts that each message takes effect once: duplicates are ignored, and a message is neither
/// lost nor paid twice when its consumer is killed before or after the commit. A message that is
/// always rejected becomes a dead letter, and a consumer that loses its broker ends. The same code
/// without idem pays twice, and the same code with an early acknowledgement loses a message.
async fn assert_pays_once(name: &str, language: Language) -> Result<()> {
    let fixture = Fixture::start(name).await?;
    let output = fixture.output.clone();
    let paid = try_all(&Trial { fixture, language }).await;
    paid.with_context(|| fs::read_to_string(output).unwrap_or_default())
}

async fn try_all(trial: &Trial) -> Result<()> {
    let code = trial.language.code()?;
    trial.fixture.publish(&["p1", "p2", "p1"]).await?;
    trial.process(&code).await?;
    assert_eq!(trial.fixture.payments().await?, 2);
    assert_eq!(trial.kill_before_commit(&code, "p3").await?, 1);
    assert_eq!(trial.kill_after_commit(&code, "p4").await?, 1);
    assert_eq!(trial.fixture.receipts().await?, "p1 p2 p3 p4");
    trial.reject(&code).await?;
    assert_eq!(trial.fixture.payments().await?, 5);
    trial.lose_broker(&code).await?;

    let code = trial.language.without_idem()?;
    assert_eq!(trial.kill_after_commit(&code, "p5").await?, 2);
    let code = trial.language.acknowledged_early()?;
    assert_eq!(trial.kill_before_commit(&code, "p6").await?, 0);
    Ok(())
}

#[tokio::test]
async fn python_consumer_pays_once() -> Result<()> {
    let python = Language {
        name: "python",
        command: install::python_consumer,
        acknowledged_early: (
            r#"channel.consume("payments")"#,
            r#"channel.consume("payments", auto_ack=True)"#,
        ),
    };
    assert_pays_once("python_consumer", python).await
}

#[tokio::test]
async fn node_consumer_pays_once() -> Result<()> {
    let node = Language {
        name: "js",
        command: install::node_consumer,
        acknowledged_early: (
            "  channel.ack(message); // After the commit.\n});",
            "}, { noAck: true });",
        ),
    };
    assert_pays_once("node_consumer", node).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn go_consumer_pays_once() -> Result<()> {
    let go = Language {
        name: "go",
        command: install::go_consumer,
        acknowledged_early: (
            r#"Consume("payments", "", false,"#,
            r#"Consume("payments", "", true,"#,
        ),
    };
    assert_pays_once("go_consumer", go).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn java_consumer_pays_once() -> Result<()> {
    let java = Language {
        name: "java",
        command: install::java_consumer,
        acknowledged_early: (
            r#"basicConsume("payments", false,"#,
            r#"basicConsume("payments", true,"#,
        ),
    };
    assert_pays_once("java_consumer", java).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn php_consumer_pays_once() -> Result<()> {
    let php = Language {
        name: "php",
        command: install::php_consumer,
        acknowledged_early: (
            "basic_consume('payments', callback:",
            "basic_consume('payments', no_ack: true, callback:",
        ),
    };
    assert_pays_once("php_consumer", php).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn ruby_consumer_pays_once() -> Result<()> {
    let ruby = Language {
        name: "ruby",
        command: |code| Ok(install::ruby_consumer(code)),
        acknowledged_early: ("manual_ack: true", "manual_ack: false"),
    };
    assert_pays_once("ruby_consumer", ruby).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn c_consumer_pays_once() -> Result<()> {
    let c = Language {
        name: "c",
        command: install::c_consumer,
        acknowledged_early: ("amqp_empty_bytes, 0, 0, 0,", "amqp_empty_bytes, 0, 1, 0,"),
    };
    assert_pays_once("c_consumer", c).await
}

#[tokio::test]
#[ignore = "runs with: cargo xtask test drivers"]
async fn perl_consumer_pays_once() -> Result<()> {
    let perl = Language {
        name: "perl",
        command: |code| Ok(install::perl_consumer(code)),
        acknowledged_early: ("no_ack => 0", "no_ack => 1"),
    };
    assert_pays_once("perl_consumer", perl).await
}
