//! The examples are programs that run: each against a real server, as its first lines say.

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

use idem_brokers::RabbitMq;
use idem_client::{
    OutgoingMessage, Publisher, RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription, Settlement, Source,
};
use idem_cluster::{Cluster, Install, Process};
use nix::sys::signal::Signal;
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(60);

fn server(name: &str) -> Cluster {
    let install = Install::from_env().expect("cargo xtask setup makes the install");
    let cluster = Cluster::builder(&install).name(name).start().unwrap();
    cluster.psql("postgres", "CREATE EXTENSION idem").unwrap();
    cluster
}

/// Builds the example, which is quick when `cargo test` has done it before, and finds it.
fn example(name: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "build",
            "--quiet",
            "--package",
            "idem-client",
            "--all-features",
            "--example",
            name,
        ])
        .status()
        .unwrap();
    assert!(built.success(), "{name} does not build");
    // This test is in target/PROFILE/deps.
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    Command::new(path.join("examples").join(name))
}

/// A program that ends when its test does, also when that is killed.
struct Running(Process);

impl Running {
    /// Starts it; what it says goes to `output`.
    fn start(command: Command, output: impl Into<OwnedFd>) -> Self {
        Self(Process::spawn(command, File::from(output.into()), &[Signal::SIGKILL]).unwrap())
    }

    /// Asks it to end, and waits.
    fn terminate(self) -> ExitStatus {
        self.0.stop(Signal::SIGTERM, DEADLINE).unwrap();
        self.0.exit_status().unwrap()
    }
}

#[test]
fn a_bare_transaction_claims_and_records() {
    let cluster = server("example-bare");
    let output = example("bare_transaction")
        .arg(cluster.connection_string("postgres"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        cluster
            .psql("postgres", "SELECT count(*), count(DISTINCT message_id) FROM idem.outbox_row")
            .unwrap()
            .trim(),
        "2|2"
    );
}

#[test]
fn an_axum_service_sends_through_the_outbox() {
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
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");

    let sent = "SELECT o.item, o.pairs, o.id = e.message_id, convert_from(e.payload, 'UTF8')::jsonb ->> 'item' \
                FROM orders o JOIN idem.outbox_row e ON e.topic = 'orders.placed'";
    assert_eq!(cluster.psql("postgres", sent).unwrap().trim(), "boots|2|t|boots");
    assert!(service.terminate().success());
}

/// Sends a request and reads its response, head and body.
fn post(address: &str, path: &str, key: &str, body: &str) -> (String, String) {
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: text/plain\r\nx-account: 7\r\n\
         idempotency-key: \"{key}\"\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.into())
}

/// In the transaction and with a lease; the second process knows what the first, which is killed, has answered.
#[test]
fn an_axum_service_answers_a_repeated_request_from_the_record_also_after_it_was_killed() {
    let cluster = server("example-idempotency");
    let start = || {
        let (output, writer) = std::io::pipe().unwrap();
        let mut command = example("axum_idempotency");
        command.arg(cluster.connection_string("postgres"));
        let service = Running::start(command, writer);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap().to_owned();
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
    // Killed.
    drop(service);

    let (service, address) = start();
    for ((path, key, body), (first_head, first_body)) in requests.into_iter().zip(&first) {
        let (head, body) = post(&address, path, key, body);
        assert_eq!((&head[..12], &body), (&first_head[..12], first_body));
        assert!(head.contains("idempotency-replayed: true"), "{head}");
    }
    let done =
        "SELECT (SELECT string_agg(item, ' ') FROM orders), (SELECT count(*) FROM idem.outbox_row WHERE topic = 'orders.placed')";
    assert_eq!(cluster.psql("postgres", done).unwrap().trim(), "boots|1");
    assert!(service.terminate().success());
}

#[test]
fn ones_own_transport_feeds_a_consumer() {
    let cluster = server("example-transport");
    let output = example("own_transport")
        .arg(cluster.connection_string("postgres"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said.lines().last(), Some("2 handled, 1 duplicate"), "{said}");
    let effects = "SELECT count(*) FROM idem.outbox_row WHERE topic = 'stock'";
    assert_eq!(cluster.psql("postgres", effects).unwrap().trim(), "2");
}

/// Five deliveries of two payments: each is booked once, and has one receipt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rabbitmq_service_books_each_payment_once_and_sends_its_receipt() {
    let cluster = server("example-rabbitmq");
    let broker = RabbitMq::start().unwrap();
    let mut command = example("rabbitmq_service");
    command.arg(cluster.connection_string("postgres")).arg(broker.url());
    let service = Running::start(command, std::io::stderr().as_fd().try_clone_to_owned().unwrap());

    let config = RabbitMqConfig::new(broker.url());
    let publisher = RabbitMqPublisher::new(config.clone());
    let ids = [Uuid::new_v4(), Uuid::new_v4()];
    for id in [ids[0], ids[0], ids[1], ids[0], ids[1]] {
        let payment = OutgoingMessage::new(id, "payments", r#"{"account": 7, "amount": 100}"#);
        // Until the service has made its queue there is nowhere to go.
        let deadline = Instant::now() + DEADLINE;
        while let Err(error) = publisher.publish(&payment).await {
            assert!(Instant::now() < deadline, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    let mut receipts = RabbitMqSource::new(config, RabbitMqSubscription::new("receipts"));
    let mut seen = BTreeSet::new();
    while seen.len() < ids.len() {
        let receipt = tokio::time::timeout(DEADLINE, receipts.next())
            .await
            .expect("a receipt")
            .unwrap()
            .unwrap();
        seen.insert(receipt.message().message_id().unwrap().to_owned());
        receipt.settle(Settlement::Acknowledge).await.unwrap();
    }
    assert_eq!(
        cluster.psql("postgres", "SELECT id, paid FROM account").unwrap().trim(),
        "7|200"
    );
    let recorded = "SELECT count(*), count(DISTINCT message_id) FROM idem.outbox_row";
    assert_eq!(cluster.psql("postgres", recorded).unwrap().trim(), "2|2");
    let status = tokio::task::spawn_blocking(|| service.terminate()).await.unwrap();
    assert!(status.success());
}
