//! Percent-encoding of URLs.

use percent_encoding::percent_decode_str;

/// Decodes sequences such as `%40`. Returns `None` if the encoding is invalid.
pub fn decode(text: &str) -> Option<String> {
    // `percent_decode_str` would keep an invalid sequence unchanged, and a password would be wrong.
    let is_encoded = text.split('%').skip(1).all(|rest| {
        let digits = rest.as_bytes().first_chunk::<2>();
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    if !is_encoded {
        return None;
    }
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn encoded_bytes_are_decoded_and_others_stay() {
        assert_eq!(decode("a%40b%2Fc%25 ü").as_deref(), Some("a@b/c% ü"));
        assert_eq!(decode("").as_deref(), Some(""));
        for wrong in ["%", "%4", "%zz", "%+1", "%ff", "%%41", "100%"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
