//! Reads the cases that the middlewares of all languages share.

use std::{fs, path::Path};

use serde::de::DeserializeOwned;

pub(crate) fn read<T: DeserializeOwned>(file: &str) -> T {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/spec/http");
    let text = fs::read_to_string(folder.join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}
