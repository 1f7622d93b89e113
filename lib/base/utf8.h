// UTF-8: checks that text is well-formed (no overlong forms, no surrogates, nothing above
// U+10FFFF), and makes text chosen by peers safe to display.
#pragma once

#include <string>
#include <string_view>

namespace addend {

bool IsUtf8(std::string_view text);

// `text` as a single line without effects on the cursor: control characters (a line feed, an escape
// sequence, C1), characters that turn the direction of writing, and bytes that are not UTF-8 become
// \n, \x1b, \u202e. Otherwise a name or a reason could forge lines of a log or rewrite a terminal.
std::string OneLine(std::string_view text);

// `text`, shortened to at most `most` bytes (3 at least) with "..." at the end if it is longer. The
// cut is between two characters, since a protobuf string has to stay UTF-8.
std::string Shortened(std::string_view text, size_t most);

}  // namespace addend
