//! The cluster that the tests of one binary share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};

static SHARED: Mutex<Option<Arc<Cluster>>> = Mutex::new(None);
static FAILED: AtomicBool = AtomicBool::new(false);

/// The shared cluster, started by whoever asks first, with the library preloaded. It is stopped
/// when the process ends; its log stays until the next run when a test failed.
///
/// # Errors
/// When it cannot be started: `cargo xtask build` makes what it needs.
pub fn shared_cluster() -> Result<Arc<Cluster>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cluster) = shared.as_ref() {
        return Ok(Arc::clone(cluster));
    }
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("shared")
        .start()?;
    let cluster = Arc::clone(shared.insert(Arc::new(cluster)));
    // SAFETY: the function takes nothing, returns and does not unwind. Statics have no destructors,
    // so this is how the cluster's directories go with the process.
    ensure!(unsafe { libc::atexit(stop) } == 0, "atexit has no room");
    Ok(cluster)
}

/// A test failed: keep what the server logged.
pub(super) fn keep_the_log(cluster: &Cluster) {
    FAILED.store(true, Ordering::SeqCst);
    eprintln!(
        "the server's log: {}",
        cluster.data_dir().with_file_name("log").display()
    );
}

extern "C" fn stop() {
    if FAILED.load(Ordering::SeqCst) {
        // The server ends with the process, and the next cluster that starts removes its
        // directories.
        return;
    }
    let cluster = SHARED.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(cluster);
}
