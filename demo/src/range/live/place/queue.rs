//! The names of the queues and of the topics.

/// The topic of the commands.
pub const COMMANDS: &str = "range.commands";

/// The topic of the facts. Every queue with this topic receives each fact.
pub const FACTS: &str = "range.facts";

/// The topic of the letters that result from hits.
pub const LETTERS: &str = "range.letters";

/// The topic of numbered steps. Their order is checked for each key.
pub const STEPS: &str = "range.steps";

/// The name of the queue or stream of letters and steps.
pub const LOG: &str = "range.log";

/// A queue of RabbitMQ, or a durable consumer of NATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The commands.
    Commands,
    /// The facts, for the leader board.
    Board,
    /// The facts, for the observer.
    Observer,
    /// The facts, for letters that are written under a lease.
    Letters,
    /// Letters and steps, in the order of their publication. No process consumes this queue.
    Log,
}

/// An effect as it was published to the broker.
#[derive(Clone, Debug)]
pub struct Logged {
    pub topic: String,
    pub message_id: String,
    pub payload: Vec<u8>,
}

/// What a broker knows about a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueState {
    /// The messages that wait. With NATS these are also the messages that are delivered and not
    /// acknowledged.
    pub messages: u64,
    /// The consumers, which may hold further messages. Always zero with NATS.
    pub consumers: u64,
}

impl Queue {
    /// The queues of a live range.
    pub const ALL: [Self; 3] = [Self::Commands, Self::Board, Self::Observer];

    /// The queues of a campaign.
    pub const CAMPAIGN: [Self; 5] = [
        Self::Commands,
        Self::Board,
        Self::Observer,
        Self::Letters,
        Self::Log,
    ];

    /// Returns the name of the queue, or of the durable consumer.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Commands => COMMANDS,
            Self::Board => "range.board",
            Self::Observer => "range.observer",
            Self::Letters => "range.writers",
            Self::Log => LOG,
        }
    }

    /// Returns the subject of the queue, which is also the name of its stream in NATS.
    #[must_use]
    pub fn subject(self) -> &'static str {
        match self {
            Self::Commands => COMMANDS,
            Self::Board | Self::Observer | Self::Letters => FACTS,
            Self::Log => LOG,
        }
    }
}
