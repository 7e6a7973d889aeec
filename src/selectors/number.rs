//! The first decimal number of a payload: the ancestors' way to say which server is wanted.

use super::Sought;

/// The first run of ASCII digits in `bytes`, of any length, modulo `modulus`.
///
/// The number ends with the first byte that is no digit, or with the payload when it is `complete`. A `modulus` of 0 is
/// taken as 1.
pub fn first_number(bytes: &[u8], complete: bool, modulus: u16) -> Sought<u16> {
    let modulus = u32::from(modulus.max(1));
    let Some(start) = bytes.iter().position(u8::is_ascii_digit) else {
        return if complete { Sought::Absent } else { Sought::NeedMore };
    };
    let mut number = 0_u32;
    for byte in &bytes[start..] {
        if !byte.is_ascii_digit() {
            return Sought::Found((number % modulus) as u16);
        }
        // A division takes longer than all else for a digit: most numbers need one, at their end.
        if number > (u32::MAX - 9) / 10 {
            number %= modulus;
        }
        number = number * 10 + u32::from(byte - b'0');
    }
    if complete {
        Sought::Found((number % modulus) as u16)
    } else {
        Sought::NeedMore
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_case::test_case;

    #[test_case("7 stars", 3 => Sought::Found(1); "at the start")]
    #[test_case("give me 12, not 13", 5 => Sought::Found(2); "the first of two")]
    #[test_case("x-4 ", 3 => Sought::Found(1); "a sign is no part of it")]
    #[test_case("007.", 8 => Sought::Found(7); "leading zeros")]
    #[test_case("18446744073709551617 ", 10 => Sought::Found(7); "beyond 64 bits")]
    #[test_case("4294967295 ", 65535 => Sought::Found(0); "all that 32 bits have")]
    #[test_case("4294967296 ", 65535 => Sought::Found(1); "and one more")]
    #[test_case("5 ", 1 => Sought::Found(0); "only one server")]
    #[test_case("65535\n", 65535 => Sought::Found(0); "largest modulus")]
    #[test_case("no digit", 3 => Sought::NeedMore)]
    #[test_case("", 3 => Sought::NeedMore; "nothing yet")]
    #[test_case("12", 3 => Sought::NeedMore; "more digits may follow")]
    fn so_far(text: &str, modulus: u16) -> Sought<u16> {
        first_number(text.as_bytes(), false, modulus)
    }

    #[test_case("12", 5 => Sought::Found(2))]
    #[test_case("no digit", 3 => Sought::Absent)]
    #[test_case("", 3 => Sought::Absent; "nothing at all")]
    fn complete(text: &str, modulus: u16) -> Sought<u16> {
        first_number(text.as_bytes(), true, modulus)
    }
}
