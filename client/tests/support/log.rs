//! Records the lines that the library logs on the thread of a test.

use std::{
    cell::RefCell,
    io::Write,
    sync::{Arc, Mutex, Once, PoisonError},
};

use tracing::Level;

thread_local! {
    static KEPT_HERE: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// The recorded log lines, at INFO and above. Clones share the lines.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

/// Stops the recording of log lines when it is dropped.
pub struct Guard(());

impl Log {
    /// Records the lines that this thread logs until the guard is dropped.
    ///
    /// One subscriber serves all threads of the process. With a subscriber for each thread, tracing
    /// would disable a log statement for all threads if a thread without a subscriber reached it
    /// first.
    pub fn keep() -> (Self, Guard) {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            tracing_subscriber::fmt()
                .with_max_level(Level::INFO)
                .with_ansi(false)
                .with_writer(|| ThreadWriter)
                .init();
        });
        let log = Self::default();
        KEPT_HERE.set(Some(log.clone()));
        (log, Guard(()))
    }

    /// Returns the recorded lines of the library that have this level and contain `text`.
    pub fn lines(&self, level: Level, text: &str) -> Vec<String> {
        let (level, target) = (format!(" {level} "), "idem_client::");
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = String::from_utf8_lossy(&log).into_owned();
        let fits =
            |line: &&str| line.contains(&level) && line.contains(target) && line.contains(text);
        lines.lines().filter(fits).map(str::to_owned).collect()
    }

    fn append(&self, bytes: &[u8]) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        KEPT_HERE.set(None);
    }
}

/// Writes to the log of the current thread, if the thread records one.
struct ThreadWriter;

impl Write for ThreadWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        KEPT_HERE.with_borrow(|log| log.iter().for_each(|log| log.append(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
