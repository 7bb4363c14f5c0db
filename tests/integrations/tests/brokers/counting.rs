//! Tests of the delivery counters and limits of each RabbitMQ version, as in the table in
//! docs/rabbitmq.md. These tests need no PostgreSQL.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use idem_brokers::RabbitMq;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions,
        BasicPublishOptions, BasicQosOptions, BasicRecoverOptions, BasicRejectOptions,
        ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, block_in_place},
    time::{sleep, timeout},
};

use crate::{
    DEADLINE,
    rabbitmq::{declare_with, shared},
};

/// The way in which a message returns to its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Return {
    Nack,
    NackOfSeveral,
    Reject,
    Recover,
    ChannelClosed,
    ConnectionClosed,
    ConsumerDied,
}

/// All ways to return a message, except a restart of the broker and the consumer timeout.
const RETURNS: [Return; 7] = [
    Return::Nack,
    Return::NackOfSeveral,
    Return::Reject,
    Return::Recover,
    Return::ChannelClosed,
    Return::ConnectionClosed,
    Return::ConsumerDied,
];

impl Return {
    /// Returns true if this version counts the return in `x-delivery-count` of a quorum queue.
    fn is_counted(self) -> bool {
        let is_no_failure = matches!(self, Self::Nack | Self::NackOfSeveral | Self::Recover);
        !(counts_failures_only() && is_no_failure)
    }
}

/// Returns true for RabbitMQ 4.3 and later, where a quorum queue counts failures only.
fn counts_failures_only() -> bool {
    RabbitMq::version().unwrap() >= (4, 3)
}

/// Returns true for RabbitMQ 4.0 and later, where the default delivery limit of a quorum queue is
/// 20.
fn has_default_limit() -> bool {
    RabbitMq::version().unwrap() >= (4, 0)
}

/// The properties of a delivery that describe earlier deliveries of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    redelivered: bool,
    delivery_count: Option<u64>,
    acquired_count: Option<u64>,
}

impl Seen {
    const FIRST: Self = Self {
        redelivered: false,
        delivery_count: None,
        acquired_count: None,
    };

    fn of(delivery: &Delivery) -> Self {
        let count = |name: &str| {
            let value = delivery.properties.headers().as_ref()?.inner().get(name)?;
            Some(u64::try_from(value.as_long_long_int().unwrap()).unwrap())
        };
        Self {
            redelivered: delivery.redelivered,
            delivery_count: count("x-delivery-count"),
            acquired_count: count("x-acquired-count"),
        }
    }

    /// Returns the properties that a quorum queue adds to a delivery after `returns` returns, of
    /// which the queue has counted `counted`. A count of zero has no header.
    fn quorum(returns: u64, counted: u64) -> Self {
        let header = |count: u64| (count > 0).then_some(count);
        Self {
            redelivered: returns > 0,
            delivery_count: header(counted),
            acquired_count: header(returns).filter(|_| counts_failures_only()),
        }
    }

    fn classic(returns: u64) -> Self {
        Self {
            redelivered: returns > 0,
            ..Self::FIRST
        }
    }
}

/// A consumer of one queue. It connects through a proxy, which can cut the connection as a crash of
/// the consumer's process does.
struct Consuming {
    connection: Connection,
    channel: Channel,
    consumer: lapin::Consumer,
    proxy: AbortHandle,
}

impl Consuming {
    /// Starts to consume. Retries errors: a queue that recovers after a kill of its server rejects
    /// consumers for some time.
    async fn start(url: &str, queue: &str) -> Self {
        let began = Instant::now();
        loop {
            match Self::try_start(url, queue).await {
                Ok(consuming) => return consuming,
                Err(error) => assert!(began.elapsed() < DEADLINE, "{queue}: {error}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn try_start(url: &str, queue: &str) -> lapin::Result<Self> {
        let (proxied, proxy) = proxied(url).await;
        let (connection, channel) = connect(&proxied).await?;
        channel.basic_qos(1, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel
            .basic_consume(queue.into(), "probe".into(), options, FieldTable::default())
            .await?;
        Ok(Self {
            connection,
            channel,
            consumer,
            proxy,
        })
    }

    async fn next(&mut self) -> lapin::Result<Delivery> {
        let next = timeout(DEADLINE, self.consumer.next()).await;
        next.expect("no delivery in time")
            .expect("the consumer has ended")
    }

    /// Cancels the consumer, because the broker would also count further deliveries. Messages that
    /// were already delivered stay unacknowledged.
    async fn cancel(&self) {
        let options = BasicCancelOptions::default();
        self.channel
            .basic_cancel("probe".into(), options)
            .await
            .unwrap();
    }

    async fn return_message(self, delivery: Delivery, how: Return) {
        self.cancel().await;
        let nack = |multiple| BasicNackOptions {
            requeue: true,
            multiple,
        };
        match how {
            Return::Nack => assert!(delivery.acker.nack(nack(false)).await.unwrap()),
            Return::NackOfSeveral => assert!(delivery.acker.nack(nack(true)).await.unwrap()),
            Return::Reject => {
                let options = BasicRejectOptions { requeue: true };
                assert!(delivery.acker.reject(options).await.unwrap());
            }
            Return::Recover => {
                let options = BasicRecoverOptions { requeue: true };
                self.channel.basic_recover(options).await.unwrap();
            }
            Return::ChannelClosed => self.channel.close(200, "".into()).await.unwrap(),
            Return::ConnectionClosed => self.connection.close(200, "".into()).await.unwrap(),
            Return::ConsumerDied => self.proxy.abort(),
        }
        // Close the connection here. Otherwise it stays open until its last handle is dropped.
        if !matches!(how, Return::ConnectionClosed | Return::ConsumerDied) {
            self.connection.close(200, "".into()).await.unwrap();
        }
    }
}

/// Starts a proxy for one connection to the server. Returns its URL and a handle that aborts it.
async fn proxied(url: &str) -> (String, AbortHandle) {
    let server = url
        .rsplit_once('@')
        .unwrap()
        .1
        .trim_end_matches("/%2f")
        .to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxied = url.replace(&server, &listener.local_addr().unwrap().to_string());
    let passing = tokio::spawn(async move {
        let (mut ours, _) = listener.accept().await.unwrap();
        if let Ok(mut theirs) = TcpStream::connect(server).await {
            let _ = copy_bidirectional(&mut ours, &mut theirs).await;
        }
    });
    (proxied, passing.abort_handle())
}

async fn connect(url: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Publishes one persistent message, and waits until the broker has confirmed it.
async fn publish(url: &str, queue: &str, text: &str) {
    let (_connection, channel) = connect(url).await.unwrap();
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .unwrap();
    let properties = BasicProperties::default().with_delivery_mode(2);
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish(
        "".into(),
        queue.into(),
        options,
        text.as_bytes(),
        properties,
    );
    let confirmation = sent.await.unwrap().await.unwrap();
    assert!(confirmation.is_ack());
}

/// Returns the number of messages in the queue, without unsettled deliveries.
pub async fn waiting(url: &str, queue: &str) -> u32 {
    found(url, queue).await.message_count()
}

/// Returns the number of consumers of the queue.
pub async fn consumers(url: &str, queue: &str) -> u32 {
    found(url, queue).await.consumer_count()
}

async fn found(url: &str, queue: &str) -> lapin::Queue {
    let (_connection, channel) = connect(url).await.unwrap();
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::durable()
    };
    let found = channel.queue_declare(queue.into(), passive, FieldTable::default());
    found.await.unwrap()
}

/// Receives the message of this queue and returns it to the queue, `times` times. Returns the
/// properties of each delivery.
async fn deliver(url: &str, queue: &str, how: Return, times: u64) -> Vec<Seen> {
    let mut seen = Vec::new();
    for _ in 0..times {
        let mut consuming = Consuming::start(url, queue).await;
        let delivery = consuming.next().await.unwrap();
        assert_eq!(delivery.data, b"probe", "{queue}");
        seen.push(Seen::of(&delivery));
        consuming.return_message(delivery, how).await;
    }
    seen
}

/// Declares a queue of the type `kind` and publishes one message to it.
async fn probe(url: &str, queue: &str, kind: &str, arguments: &[(&str, AMQPValue)]) {
    let kind = [("x-queue-type", text(kind))];
    declare_with(url, queue, &[&kind, arguments].concat()).await;
    publish(url, queue, "probe").await;
}

// Tests of counted returns

#[tokio::test(flavor = "multi_thread")]
async fn quorum_queue_counts_returns_by_version() {
    let url = shared();
    for how in RETURNS {
        let queue = format!("counting-quorum-{how:?}");
        probe(&url, &queue, "quorum", &[]).await;
        let expected: Vec<Seen> = (0..3)
            .map(|returns| Seen::quorum(returns, if how.is_counted() { returns } else { 0 }))
            .collect();
        assert_eq!(deliver(&url, &queue, how, 3).await, expected, "{how:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn classic_queue_marks_redelivery_without_a_count() {
    let url = shared();
    for how in RETURNS {
        let queue = format!("counting-classic-{how:?}");
        probe(&url, &queue, "classic", &[]).await;
        let expected: Vec<Seen> = (0..3).map(Seen::classic).collect();
        assert_eq!(deliver(&url, &queue, how, 3).await, expected, "{how:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_consumer_keeps_its_message_and_can_settle() {
    let url = shared();
    for kind in ["classic", "quorum"] {
        let queue = format!("counting-cancel-{kind}");
        probe(&url, &queue, kind, &[]).await;
        let mut consuming = Consuming::start(&url, &queue).await;
        let delivery = consuming.next().await.unwrap();
        consuming.cancel().await;
        // If the broker had returned the first message to the queue, it would deliver that message
        // first.
        publish(&url, &queue, "behind").await;
        let mut other = Consuming::start(&url, &queue).await;
        assert_eq!(other.next().await.unwrap().data, b"behind", "{kind}");
        assert!(
            delivery
                .acker
                .ack(BasicAckOptions::default())
                .await
                .unwrap()
        );
        consuming.connection.close(200, "".into()).await.unwrap();
        assert_eq!(waiting(&url, &queue).await, 0, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quorum_queue_counts_a_restart_of_the_broker() {
    let mut server = RabbitMq::start().unwrap();
    let url = server.url();
    probe(&url, "classic", "classic", &[]).await;
    probe(&url, "quorum", "quorum", &[]).await;
    // The server is stopped cleanly twice and killed twice.
    for restarts in 0..=4_u64 {
        let mut held = Vec::new();
        for (queue, expected) in [
            ("classic", Seen::classic(restarts)),
            ("quorum", Seen::quorum(restarts, restarts)),
        ] {
            let mut consuming = Consuming::start(&url, queue).await;
            let delivery = consuming.next().await.unwrap();
            assert_eq!(
                Seen::of(&delivery),
                expected,
                "{queue} after {restarts} restarts"
            );
            held.push((consuming, delivery));
        }
        match restarts {
            0 | 1 => block_in_place(|| server.stop()).unwrap(),
            2 | 3 => block_in_place(|| server.kill()).unwrap(),
            _ => return,
        }
        block_in_place(|| server.start_again()).unwrap();
    }
}

// Tests of limits

/// A quorum queue with a delivery limit, and the queue of its dead letters.
struct Limited<'a> {
    url: &'a str,
    queue: String,
    letters: String,
}

impl<'a> Limited<'a> {
    async fn new(url: &'a str, name: &str, arguments: &[(&str, AMQPValue)]) -> Self {
        let (queue, letters) = (format!("limit-{name}"), format!("limit-{name}-letters"));
        declare_with(url, &letters, &[]).await;
        let target = [
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(&letters)),
        ];
        probe(url, &queue, "quorum", &[&target, arguments].concat()).await;
        Self {
            url,
            queue,
            letters,
        }
    }

    /// Asserts that the broker moves the message to the dead letters after `returns` returns, made
    /// in the way `how`.
    async fn assert_ends_after(&self, returns: u64, how: Return) {
        let seen = deliver(self.url, &self.queue, how, returns).await;
        assert_eq!(seen.len() as u64, returns);
        let letter = Consuming::start(self.url, &self.letters)
            .await
            .next()
            .await
            .unwrap();
        let headers = letter.properties.headers().as_ref().unwrap().inner();
        let reason = headers.get("x-first-death-reason");
        assert_eq!(reason, Some(&text("delivery_limit")), "{}", self.queue);
        assert_eq!(waiting(self.url, &self.queue).await, 0);
    }

    /// Asserts that the message is still in its queue after more returns than the limits in these
    /// tests.
    async fn assert_never_ends(&self, how: Return) {
        let seen = deliver(self.url, &self.queue, how, 30).await;
        let counted = if how.is_counted() { 29 } else { 0 };
        assert_eq!(
            seen.last(),
            Some(&Seen::quorum(29, counted)),
            "{}",
            self.queue
        );
        assert_eq!(waiting(self.url, &self.letters).await, 0, "{}", self.queue);
    }
}

fn limit(limit: i32) -> [(&'static str, AMQPValue); 1] {
    [("x-delivery-limit", AMQPValue::LongInt(limit))]
}

#[tokio::test(flavor = "multi_thread")]
async fn default_delivery_limit_is_20_since_rabbitmq_4_0() {
    let url = shared();
    for how in [Return::Nack, Return::Reject, Return::ConsumerDied] {
        let limited = Limited::new(&url, &format!("default-{how:?}"), &[]).await;
        if has_default_limit() && how.is_counted() {
            limited.assert_ends_after(21, how).await;
        } else {
            limited.assert_never_ends(how).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_limit_without_dead_letters_deletes_the_message() {
    let url = shared();
    probe(&url, "limit-deletes", "quorum", &limit(2)).await;
    assert_eq!(
        deliver(&url, "limit-deletes", Return::Reject, 3)
            .await
            .len(),
        3
    );
    publish(&url, "limit-deletes", "behind").await;
    let mut consuming = Consuming::start(&url, "limit-deletes").await;
    assert_eq!(consuming.next().await.unwrap().data, b"behind");
    assert_eq!(waiting(&url, "limit-deletes").await, 0);
}

/// RabbitMQ 3.10 accepts the limit -1, but the first return of a message already exceeds this
/// limit.
#[tokio::test(flavor = "multi_thread")]
async fn delivery_limit_minus_one_is_unlimited_since_rabbitmq_4_0() {
    let url = shared();
    let limited = Limited::new(&url, "none", &limit(-1)).await;
    if has_default_limit() {
        limited.assert_never_ends(Return::Reject).await;
    } else {
        limited.assert_ends_after(1, Return::Reject).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn smaller_limit_of_policy_and_argument_applies() {
    let server = RabbitMq::start().unwrap();
    let url = server.url();
    let policy = |name: &str, limit: i32| {
        let (pattern, definition) = (
            format!("^limit-{name}$"),
            format!(r#"{{"delivery-limit": {limit}}}"#),
        );
        block_in_place(|| {
            server.control(&[
                "set_policy",
                name,
                &pattern,
                &definition,
                "--apply-to",
                "queues",
            ])
        })
    };
    policy("by-policy", 2).unwrap();
    policy("smaller-policy", 2).unwrap();
    policy("smaller-argument", 5).unwrap();
    let by_policy = Limited::new(&url, "by-policy", &[]).await;
    by_policy.assert_ends_after(3, Return::Reject).await;
    let smaller_policy = Limited::new(&url, "smaller-policy", &limit(5)).await;
    smaller_policy.assert_ends_after(3, Return::Reject).await;
    let smaller_argument = Limited::new(&url, "smaller-argument", &limit(2)).await;
    smaller_argument.assert_ends_after(3, Return::Reject).await;

    let none = policy("none-by-policy", -1);
    if has_default_limit() {
        none.unwrap();
        let none = Limited::new(&url, "none-by-policy", &[]).await;
        none.assert_never_ends(Return::Reject).await;
        // If the policy or the argument is -1, the limit of the other setting still applies.
        policy("lifted-argument", -1).unwrap();
        let argument = Limited::new(&url, "lifted-argument", &limit(2)).await;
        argument.assert_ends_after(3, Return::Reject).await;
        policy("lifted-policy", 2).unwrap();
        let policy = Limited::new(&url, "lifted-policy", &limit(-1)).await;
        policy.assert_ends_after(3, Return::Reject).await;
    } else {
        let error = none.unwrap_err().to_string();
        assert!(
            error.contains("-1 is not a valid delivery limit"),
            "{error}"
        );
    }
}

// Tests of the consumer timeout

#[tokio::test(flavor = "multi_thread")]
async fn default_consumer_timeout_is_30_minutes() {
    let server = RabbitMq::start().unwrap();
    let timeout = server.control(&["eval", "application:get_env(rabbit, consumer_timeout)."]);
    assert_eq!(timeout.unwrap(), "{ok,1800000}");
}

/// Starts a server with this consumer timeout in seconds. The server checks the timeout five times
/// a second instead of once a minute.
pub fn impatient(timeout_s: u32) -> RabbitMq {
    let server = RabbitMq::start_with(&format!("consumer_timeout = {timeout_s}000")).unwrap();
    let often = "application:set_env(rabbit, channel_tick_interval, 200), \
                 application:set_env(rabbit, quorum_tick_interval, 200).";
    server.control(&["eval", often]).unwrap();
    server
}

/// Waits for the consumer timeout. Returns the error that closed the channel, or `None` if the
/// broker has cancelled the consumer.
async fn timed_out(consuming: &mut Consuming) -> Option<lapin::Error> {
    let end = timeout(DEADLINE, consuming.consumer.next());
    end.await
        .expect("no consumer timeout in time")
        .map(|end| end.unwrap_err())
}

#[tokio::test(flavor = "multi_thread")]
async fn quorum_queue_counts_consumer_timeout_before_rabbitmq_4_3() {
    let server = impatient(1);
    let url = server.url();
    probe(&url, "late", "quorum", &[]).await;
    for returns in 0..3 {
        let mut consuming = Consuming::start(&url, "late").await;
        let delivery = consuming.next().await.unwrap();
        let counted = if counts_failures_only() { 0 } else { returns };
        assert_eq!(Seen::of(&delivery), Seen::quorum(returns, counted));
        let closed = timed_out(&mut consuming).await;
        assert_eq!(closed.is_none(), counts_failures_only(), "{closed:?}");
        assert_eq!(
            consuming.channel.status().connected(),
            counts_failures_only()
        );
        assert!(closed.is_none_or(|error| error.to_string().contains("timed out")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn classic_queue_has_no_consumer_timeout_since_rabbitmq_4_3() {
    let server = impatient(1);
    let url = server.url();
    probe(&url, "late", "classic", &[]).await;
    if !counts_failures_only() {
        for returns in 0..3 {
            let mut consuming = Consuming::start(&url, "late").await;
            let delivery = consuming.next().await.unwrap();
            assert_eq!(Seen::of(&delivery), Seen::classic(returns));
            let closed = timed_out(&mut consuming)
                .await
                .expect("the channel was not closed");
            assert!(closed.to_string().contains("timed out"), "{closed}");
        }
        return;
    }
    let mut patient = Consuming::start(&url, "late").await;
    let delivery = patient.next().await.unwrap();
    // The consumer timeout passes three times for a message of a quorum queue. During this time,
    // the message of the classic queue stays unacknowledged.
    probe(&url, "quorum", "quorum", &[]).await;
    for _ in 0..3 {
        let mut consuming = Consuming::start(&url, "quorum").await;
        consuming.next().await.unwrap();
        assert!(timed_out(&mut consuming).await.is_none());
    }
    assert!(
        delivery
            .acker
            .ack(BasicAckOptions::default())
            .await
            .unwrap()
    );
    patient.connection.close(200, "".into()).await.unwrap();
    assert_eq!(waiting(&url, "late").await, 0);
}
