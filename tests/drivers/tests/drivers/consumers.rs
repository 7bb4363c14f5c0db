//! The consumers of docs/languages.md: the tests execute the code of the page.

use std::fs;
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use idem_brokers::RabbitMq;
use idem_cluster::workspace_root;
use idem_drivers::install;
use idem_testkit::{Database, Session, until};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

const QUEUE: &str = "payments";

/// A consumer that is killed when the value is dropped.
struct Consumer(Child);

impl Drop for Consumer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everything that a consumer needs.
struct Fixture {
    db: Database,
    session: Session,
    broker: RabbitMq,
    _connection: Connection,
    channel: Channel,
}

impl Fixture {
    async fn start(name: &str) -> Result<Self> {
        let db = Database::with_idem(name).await?;
        let session = db.connect().await?;
        session
            .run(
                "CREATE TABLE account (id bigint PRIMARY KEY, paid bigint NOT NULL);
                 INSERT INTO account VALUES (7, 0);
                 CREATE FUNCTION always_new(text, text) RETURNS boolean LANGUAGE sql
                     AS 'SELECT true';
                 CREATE FUNCTION record_nothing(text, text, jsonb) RETURNS void LANGUAGE sql
                     AS ''",
            )
            .await?;
        let broker = RabbitMq::start()?;
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&broker.url(), properties).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        channel
            .queue_declare(QUEUE.into(), durable, FieldTable::default())
            .await?;
        Ok(Self {
            db,
            session,
            broker,
            _connection: connection,
            channel,
        })
    }

    /// Publishes payments of 100 with these message ids.
    async fn publish(&self, ids: &[&str]) -> Result<()> {
        for id in ids {
            let properties = BasicProperties::default()
                .with_message_id(ShortString::from(*id))
                .with_delivery_mode(2);
            let published = self.channel.basic_publish(
                "".into(),
                QUEUE.into(),
                BasicPublishOptions::default(),
                br#"{"account": 7, "amount": 100}"#,
                properties,
            );
            let confirmed = published.await?.await?;
            ensure!(confirmed.is_ack(), "{confirmed:?}");
        }
        Ok(())
    }

    fn consume(&self, mut command: Command) -> Result<Consumer> {
        self.db.cluster().set_server_of(&mut command);
        let started = command
            .env("PGDATABASE", self.db.name())
            .env("AMQP_URL", self.broker.url())
            .spawn()?;
        Ok(Consumer(started))
    }

    /// Waits until no message is in the queue, and none is delivered without acknowledgement.
    async fn until_acknowledged(&self) -> Result<()> {
        until("every message is acknowledged", async || {
            let queues = ["list_queues", "--silent", "--no-table-headers", "messages"];
            Ok(self.broker.control(&queues)?.trim() == "0")
        })
        .await
    }

    async fn paid(&self) -> Result<String> {
        self.session.text("SELECT paid FROM account").await
    }

    /// Returns the messages with one receipt.
    async fn receipts(&self) -> Result<String> {
        let sql = "SELECT string_agg(id, ' ' ORDER BY id)
                     FROM unnest('{p1,p2,p3,p4}'::text[]) id
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

/// Each message takes effect once: duplicates are ignored, and a message is not lost when its
/// consumer is killed before the commit. The same code without idem pays duplicates twice.
async fn pays_once(
    name: &str,
    language: &str,
    command: impl Fn(&str) -> Result<Command>,
) -> Result<()> {
    let code = code(language)?;
    let fixture = Fixture::start(name).await?;
    fixture.publish(&["p1", "p2", "p1"]).await?;
    let consumer = fixture.consume(command(&code)?)?;
    fixture.until_acknowledged().await?;
    assert_eq!(fixture.paid().await?, "200");

    let holder = fixture.db.connect().await?;
    holder
        .run("BEGIN; UPDATE account SET paid = paid WHERE id = 7")
        .await?;
    fixture.publish(&["p3", "p2"]).await?;
    fixture.until_waiting().await?;
    drop(consumer);
    holder.run("ROLLBACK").await?;
    let consumer = fixture.consume(command(&code)?)?;
    fixture.until_acknowledged().await?;
    assert_eq!(fixture.paid().await?, "300");
    assert_eq!(fixture.receipts().await?, "p1 p2 p3");

    drop(consumer);
    let broken = code
        .replace("idem_try_claim", "always_new")
        .replace("idem_record_effects", "record_nothing");
    ensure!(broken != code, "the code does not call idem");
    let _consumer = fixture.consume(command(&broken)?)?;
    fixture.publish(&["p4", "p4"]).await?;
    fixture.until_acknowledged().await?;
    assert_eq!(fixture.paid().await?, "500", "without idem");
    Ok(())
}

/// Returns the code of docs/languages.md in this language.
fn code(language: &str) -> Result<String> {
    let page = fs::read_to_string(workspace_root().join("docs/languages.md"))?;
    let (_, code) = page
        .split_once(&format!("\n```{language}\n"))
        .with_context(|| format!("docs/languages.md has no code in {language}"))?;
    let (code, _) = code.split_once("\n```\n").context("the code has no end")?;
    Ok(format!("{code}\n"))
}

#[tokio::test]
async fn python_consumer_pays_once() -> Result<()> {
    pays_once("python_consumer", "python", install::python_consumer).await
}

#[tokio::test]
async fn node_consumer_pays_once() -> Result<()> {
    pays_once("node_consumer", "js", install::node_consumer).await
}
