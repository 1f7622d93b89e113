// Certificates for tests, made by the openssl command.
#pragma once

#include <string>

#include "lib/rpc/tls.h"

namespace addend {

// A folder with an authority, and the certificates that it has signed.
class Authority {
 public:
  // `folder` exists; `name`: of the authority, unique in it.
  Authority(std::string folder, std::string name);

  // Signs a certificate for `names` ("IP:127.0.0.1,DNS:addend"), and returns files with it in a
  // folder of its own, <folder>/<holder>. `days` < 0: it has expired.
  TlsFiles Sign(const std::string& holder, const std::string& names, int days = 1) const;
  std::string ca() const { return folder_ + "/" + name_ + ".crt"; }

 private:
  const std::string folder_;
  const std::string name_;
};

// Runs a command of the shell; fails the test if it fails.
void Shell(const std::string& command);
std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& text);

}  // namespace addend
