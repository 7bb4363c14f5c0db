//! Runs each example. The first lines of an example name the server that it needs, and the test
//! starts this server. For Kafka it is the mock cluster of librdkafka behind a proxy with TLS.

#[path = "tls/proxy.rs"]
mod proxy;

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use idem_brokers::{Authority, Nats, RabbitMq, Validity};
use idem_cluster::{Cluster, Install, Process};
use idem_kafka::{KafkaConfig, KafkaPublisher, KafkaSource, KafkaSubscription};
use idem_nats::{NatsConfig, NatsPublisher, NatsSource, NatsSubscription};
use idem_rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription};
use idem_runtime::{OutgoingMessage, Publisher, Settlement, Source};
use nix::sys::signal::Signal;
use rdkafka::mocking::MockCluster;
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(60);

fn server(name: &str) -> Cluster {
    let install = Install::from_env().expect("no PostgreSQL install; run cargo xtask setup");
    let cluster = Cluster::builder(&install).name(name).start().unwrap();
    cluster.psql("postgres", "CREATE EXTENSION idem").unwrap();
    cluster
}

/// Builds the example and returns a command that runs it. The build selects the same packages as
/// `cargo xtask test`. Otherwise cargo would select other features of the dependencies, and would
/// compile them again.
fn example(name: &str) -> Command {
    let built = idem_cluster::cargo()
        .args(["build", "--quiet", "--workspace", "--exclude", "idem"])
        .args(["--all-features", "--example", name])
        .status()
        .unwrap();
    assert!(built.success(), "the build of {name} failed");
    // The executable of this test is in target/PROFILE/deps, and the examples are in
    // target/PROFILE/examples.
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    Command::new(path.join("examples").join(name))
}

/// A running program. It is killed when its test ends, and also when the test process is killed.
struct Running(Process);

impl Running {
    /// Starts the program and redirects its output to `output`.
    fn start(command: Command, output: impl Into<OwnedFd>) -> Self {
        Self(Process::spawn(command, File::from(output.into()), &[Signal::SIGKILL]).unwrap())
    }

    /// Sends SIGTERM, and waits until the program has ended.
    fn terminate(self) -> ExitStatus {
        self.0.stop(Signal::SIGTERM, DEADLINE).unwrap();
        self.0.exit_status().unwrap()
    }
}

#[test]
fn bare_transaction_example_claims_and_records() {
    let cluster = server("example-bare");
    let output = example("bare_transaction")
        .arg(cluster.connection_string("postgres"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        cluster
            .psql(
                "postgres",
                "SELECT count(*), count(DISTINCT message_id) FROM idem.outbox_row"
            )
            .unwrap()
            .trim(),
        "2|2"
    );
}

#[test]
fn axum_outbox_example_sends_through_the_outbox() {
    let cluster = server("example-axum");
    let (output, writer) = std::io::pipe().unwrap();
    let mut command = example("axum_outbox");
    command.arg(cluster.connection_string("postgres"));
    let service = Running::start(command, writer);
    let mut output = BufReader::new(output);
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let address = line
        .trim()
        .strip_prefix("listening on http://")
        .unwrap_or_else(|| panic!("{line}"));

    let body = r#"{"item": "boots", "pairs": 2}"#;
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 201 "), "{response}");

    let sent = "SELECT o.item, o.pairs, o.id = e.message_id, \
                convert_from(e.payload, 'UTF8')::jsonb ->> 'item' \
                FROM orders o JOIN idem.outbox_row e ON e.topic = 'orders.placed'";
    assert_eq!(
        cluster.psql("postgres", sent).unwrap().trim(),
        "boots|2|t|boots"
    );
    assert!(service.terminate().success());
}

/// Sends a request and returns the head and the body of its response.
fn post(address: &str, path: &str, key: &str, body: &str) -> (String, String) {
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: text/plain\r\nx-account: 7\r\n\
         idempotency-key: \"{key}\"\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.into())
}

/// A repeated request returns the stored response, also after the first process was killed. This
/// applies to a request in a transaction and to a request with a lease.
#[test]
fn axum_idempotency_example_replays_responses_after_a_kill() {
    let cluster = server("example-idempotency");
    let start = || {
        let (output, writer) = std::io::pipe().unwrap();
        let mut command = example("axum_idempotency");
        command.arg(cluster.connection_string("postgres"));
        let service = Running::start(command, writer);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .unwrap()
            .to_owned();
        (service, address)
    };
    let requests = [
        ("/orders", "o-1", "boots"),
        ("/orders", "o-2", ""),
        ("/payments", "p-1", "1999"),
    ];

    let (service, address) = start();
    let first = requests.map(|(path, key, body)| post(&address, path, key, body));
    for ((head, body), status) in first.iter().zip([201, 422, 201]) {
        assert!(
            head.starts_with(&format!("http/1.1 {status} ")) && !head.contains("replayed"),
            "{head} {body}"
        );
    }
    let other = post(&address, "/orders", "o-1", "shoes").0;
    assert!(
        other.starts_with("http/1.1 422 ") && other.contains("application/problem+json"),
        "{other}"
    );
    // Dropping the service kills its process.
    drop(service);

    let (service, address) = start();
    for ((path, key, body), (first_head, first_body)) in requests.into_iter().zip(&first) {
        let (head, body) = post(&address, path, key, body);
        assert_eq!((&head[..12], &body), (&first_head[..12], first_body));
        assert!(head.contains("idempotency-replayed: true"), "{head}");
    }
    let done = "SELECT (SELECT string_agg(item, ' ') FROM orders), \
                (SELECT count(*) FROM idem.outbox_row WHERE topic = 'orders.placed')";
    assert_eq!(cluster.psql("postgres", done).unwrap().trim(), "boots|1");
    assert!(service.terminate().success());
}

#[test]
fn own_transport_example_feeds_a_consumer() {
    let cluster = server("example-transport");
    let output = example("own_transport")
        .arg(cluster.connection_string("postgres"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        printed.lines().last(),
        Some("2 handled, 1 duplicate"),
        "{printed}"
    );
    let effects = "SELECT count(*) FROM idem.outbox_row WHERE topic = 'stock'";
    assert_eq!(cluster.psql("postgres", effects).unwrap().trim(), "2");
}

/// What a service on a broker needs: a database over TLS with its roles, and a certificate
/// authority.
struct Shop {
    cluster: Cluster,
    authority: Authority,
}

impl Shop {
    fn open(name: &str) -> Self {
        let authority = Authority::create().unwrap();
        let server = authority.server(&["db.test"], Validity::Now).unwrap();
        let install = Install::from_env().expect("no PostgreSQL install; run cargo xtask setup");
        let builder = Cluster::builder(&install).name(name).tcp().unwrap();
        let builder = builder.tls(&server.certificate, &server.key, &authority.ca());
        let cluster = builder.start().unwrap();
        cluster.psql("postgres", "CREATE EXTENSION idem").unwrap();
        cluster
            .psql(
                "postgres",
                include_str!("../../../integrations/service.sql"),
            )
            .unwrap();
        Self { cluster, authority }
    }

    /// Starts the service of this example, with the database roles of the guide.
    fn serve(&self, name: &str, broker: &str) -> Running {
        let address = self.cluster.address().unwrap();
        let database =
            |user: &str| format!("host=db.test hostaddr={address} user={user} dbname=postgres");
        let mut command = example(name);
        command
            .args([
                database("shop_consumer"),
                database("shop_relay"),
                broker.to_owned(),
            ])
            .arg(self.authority.ca());
        Running::start(
            command,
            std::io::stderr().as_fd().try_clone_to_owned().unwrap(),
        )
    }

    /// Publishes two payments, five times in total, and one unreadable message. Asserts that each
    /// payment is booked once and has one receipt, and that the unreadable message is rejected.
    async fn assert_payments_are_booked_once(
        self,
        service: Running,
        publisher: impl Publisher,
        mut receipts: impl Source,
        mut rejected: impl Source,
    ) {
        let ids = [Uuid::new_v4(), Uuid::new_v4()];
        let payment = |id| OutgoingMessage::new(id, "payments", r#"{"account": 7, "amount": 100}"#);
        let unreadable = OutgoingMessage::new(Uuid::new_v4(), "payments", "no payment");
        let paid = [ids[0], ids[0], ids[1], ids[0], ids[1]].map(payment);
        for message in paid.iter().chain([&unreadable]) {
            // Publishing fails until the service has created its streams and queues.
            let deadline = Instant::now() + DEADLINE;
            while let Err(error) = publisher.publish(message).await {
                assert!(Instant::now() < deadline, "{error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let mut seen = BTreeSet::new();
        while seen.len() < ids.len() {
            seen.insert(id_of_next(&mut receipts).await);
        }
        assert_eq!(
            id_of_next(&mut rejected).await,
            unreadable.message_id.to_string()
        );
        let sql = |sql| {
            self.cluster
                .psql("postgres", sql)
                .unwrap()
                .trim()
                .to_owned()
        };
        assert_eq!(sql("SELECT id, paid FROM account"), "7|200");
        assert_eq!(
            sql("SELECT count(*), count(DISTINCT message_id) FROM idem.outbox_row"),
            "2|2"
        );
        assert_eq!(sql("SELECT count(*) FROM idem.dead_letters"), "0");
        let status = tokio::task::spawn_blocking(|| service.terminate())
            .await
            .unwrap();
        assert!(status.success());
    }
}

async fn id_of_next(source: &mut impl Source) -> String {
    let next = tokio::time::timeout(DEADLINE, source.next());
    let delivery = next.await.expect("no message in time").unwrap().unwrap();
    let id = delivery.message().message_id().unwrap().to_owned();
    delivery.settle(Settlement::Acknowledge).await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_service_books_each_payment_once() {
    let shop = Shop::open("example-rabbitmq");
    let certified = shop
        .authority
        .server(&["127.0.0.1"], Validity::Now)
        .unwrap();
    let broker = RabbitMq::start_with_tls(&certified, None).unwrap();
    let definitions = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../integrations/rabbitmq/examples/rabbitmq_definitions.json"
    );
    broker
        .control(&["import_definitions", definitions])
        .unwrap();
    let port = broker.tls_port().unwrap();
    let service = shop.serve(
        "rabbitmq_service",
        &format!("amqps://guest:guest@127.0.0.1:{port}/%2f"),
    );

    let config = RabbitMqConfig::new(broker.url());
    let source = |queue| RabbitMqSource::new(config.clone(), RabbitMqSubscription::new(queue));
    let publisher = RabbitMqPublisher::new(config.clone());
    shop.assert_payments_are_booked_once(
        service,
        publisher,
        source("receipts"),
        source("payments.dead"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_service_books_each_payment_once() {
    let shop = Shop::open("example-nats");
    let certified = shop
        .authority
        .server(&["127.0.0.1"], Validity::Now)
        .unwrap();
    let (certificate, key) = (certified.certificate.display(), certified.key.display());
    let server = Nats::start_with(&format!(
        "tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", timeout: 60 }}"
    ))
    .unwrap();
    let url = format!("tls://127.0.0.1:{}", server.port());
    let service = shop.serve("nats_service", &url);

    let config = NatsConfig {
        ca: Some(shop.authority.ca()),
        ..NatsConfig::new(url)
    };
    let publisher = NatsPublisher::new(config.clone());
    let first = OutgoingMessage::new(Uuid::new_v4(), "receipts", "{}");
    let deadline = Instant::now() + DEADLINE;
    while let Err(error) = publisher.publish(&first).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let source = |stream| NatsSource::new(config.clone(), NatsSubscription::new(stream, "test"));
    let mut receipts = source("receipts");
    assert_eq!(
        id_of_next(&mut receipts).await,
        first.message_id.to_string()
    );
    shop.assert_payments_are_booked_once(service, publisher, receipts, source("dead"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_service_books_each_payment_once() {
    let shop = Shop::open("example-kafka");
    let certified = shop
        .authority
        .server(&["127.0.0.2"], Validity::Now)
        .unwrap();
    let cluster = MockCluster::new(1).unwrap();
    for topic in ["payments", "receipts", "payments.dead"] {
        cluster.create_topic(topic, 4, 1).unwrap();
    }
    let brokers = proxy::start(&cluster.bootstrap_servers(), &certified).await;
    let service = shop.serve("kafka_service", &brokers);

    let config = KafkaConfig::new(cluster.bootstrap_servers());
    let publisher = KafkaPublisher::new(&config).unwrap();
    let source = |topic: &str| {
        KafkaSource::new(
            &config,
            &KafkaSubscription::new(format!("test.{topic}"), [topic]),
        )
        .unwrap()
    };
    shop.assert_payments_are_booked_once(
        service,
        publisher,
        source("receipts"),
        source("payments.dead"),
    )
    .await;
}

/// The guides contain the programs that the tests run, word for word.
#[test]
fn guides_contain_the_tested_programs() {
    let sql = include_str!("../../../integrations/service.sql");
    let definitions =
        include_str!("../../../integrations/rabbitmq/examples/rabbitmq_definitions.json");
    for (guide, programs) in [
        (
            include_str!("../../../docs/rabbitmq.md"),
            &[
                sql,
                definitions,
                include_str!("../../../integrations/rabbitmq/examples/rabbitmq_service.rs"),
            ][..],
        ),
        (
            include_str!("../../../docs/nats.md"),
            &[
                sql,
                include_str!("../../../integrations/nats/examples/nats_service.rs"),
            ],
        ),
        (
            include_str!("../../../docs/kafka.md"),
            &[
                sql,
                include_str!("../../../integrations/kafka/examples/kafka_service.rs"),
            ],
        ),
    ] {
        for program in programs {
            let first = program.lines().next().unwrap();
            assert!(
                guide.contains(program),
                "the guide does not contain the program that begins with: {first}"
            );
        }
    }
}
