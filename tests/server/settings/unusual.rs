//! Tests that results are the same under valid settings that are rarely used.

use std::sync::Arc;

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::Database;

use super::run;

/// Settings that can change the text form of a value, a plan, or what a transaction sees.
const UNUSUAL: [(&str, &str); 15] = [
    ("datestyle", "German, DMY"),
    ("intervalstyle", "sql_standard"),
    ("timezone", "Pacific/Chatham"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-5"),
    ("lc_messages", "C.UTF-8"),
    ("plan_cache_mode", "force_generic_plan"),
    ("wal_level", "logical"),
    ("row_security", "off"),
    ("array_nulls", "off"),
    ("transform_null_equals", "on"),
    ("xmloption", "document"),
    ("enable_indexscan", "off"),
    ("jit_above_cost", "0"),
    ("default_transaction_isolation", "repeatable read"),
];

/// Returns the setting with which the planner puts a Gather node on top of every plan that can run
/// in a worker.
fn parallel_setting(version: u16) -> &'static str {
    if version < 16 {
        "force_parallel_mode"
    } else {
        "debug_parallel_query"
    }
}

/// The script returns the same results under all these settings as under the defaults.
#[tokio::test]
async fn unusual_settings_change_no_result() -> Result<()> {
    let usual = Database::with_idem("usual").await?;
    let expected = run(&usual.connect().await?).await?;

    let install = Install::from_env()?;
    let mut builder = Cluster::builder(&install)
        .name("unusual")
        .setting("shared_buffers", "32MB");
    for (name, value) in UNUSUAL
        .iter()
        .copied()
        .chain([(parallel_setting(install.version()), "on")])
    {
        builder = builder.setting(name, value);
    }
    let unusual = Database::with_idem_in(Arc::new(builder.start()?), "unusual").await?;
    let session = unusual.connect().await?;
    for (name, value) in UNUSUAL {
        let shown = session.text(&format!("SHOW {name}")).await?;
        assert_eq!(shown, value, "{name} is not set in the session");
    }
    assert_eq!(run(&session).await?, expected);
    Ok(())
}
