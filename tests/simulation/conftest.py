def pytest_addoption(parser):
    parser.addoption("--simulate-seconds", type=int, default=20, help="for how long seeds are begun, on all cores; the first seed is 1")
